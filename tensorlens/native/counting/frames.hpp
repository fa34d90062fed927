// Reads the Python frames of the calling thread, whether or not it holds the GIL.
//
// torch's bindings release the GIL before an operation runs, so most allocations are made without
// it. Taking it could deadlock (its holder may wait for a lock of this thread: a static's guard,
// autograd's, OpenMP's barrier), would let other threads run at new points, and waits up to 5 ms
// for a thread that computes. It is not needed: a thread inside C++ runs no Python, so its stack
// does not change; each frame keeps its code object alive; and only constant fields of a code
// object are read. The public functions create frame objects and count references, which needs the
// GIL, so fields are read at their offsets in this Python version. First check_layout compares a
// whole stack with the results of the public functions.

#pragma once

#include <cstdint>
#include <cstring>

#include <unistd.h>

using PyObject = struct _object;
using PyThreadState = struct _ts;
extern "C" const unsigned long Py_Version;
extern "C" char PyCode_Type[];
extern "C" PyThreadState* PyThreadState_Get();
extern "C" PyThreadState* PyGILState_GetThisThreadState();
extern "C" PyObject* PyThreadState_GetFrame(PyThreadState*);
extern "C" PyObject* PyFrame_GetBack(PyObject*);
extern "C" PyObject* PyFrame_GetCode(PyObject*);
extern "C" int PyFrame_GetLasti(PyObject*);
extern "C" int PyFrame_GetLineNumber(PyObject*);
extern "C" PyObject* PyObject_GetAttrString(PyObject*, const char*);
extern "C" void Py_DecRef(PyObject*);
extern "C" void PyErr_Clear();
extern "C" char* PyBytes_AsString(PyObject*);
extern "C" ssize_t PyBytes_Size(PyObject*);

namespace {

// Offsets in bytes. `frames` is a field of the thread's state: the innermost frame or, unless
// `indirect` is negative, a record that has it at that offset.
struct Layout {
  unsigned version;
  int frames, indirect;
  int code, previous, instruction, owner;
  int filename, qualname, first_line, line_table, instructions;
  int locals;  // of a frame
};

constexpr Layout kLayouts[] = {
    {0x030B, 56, 8, 32, 48, 56, 69, 112, 128, 72, 136, 184, 72},
    {0x030C, 56, 0, 0, 8, 56, 70, 112, 128, 68, 136, 192, 72},
    {0x030D, 72, -1, 0, 8, 56, 70, 112, 128, 68, 136, 200, 72},
    {0x030E, 72, -1, 0, 8, 56, 74, 112, 128, 68, 136, 208, 80},
};

constexpr int kTypeOfObject = 8;
constexpr int kSizeOfCode = 16;  // the number of instruction units, two bytes each
constexpr int kOwnedByInterpreter = 3;  // frames with this owner or a higher one stand for C code

const Layout* known_layout() {
  for (const Layout& layout : kLayouts) {
    if (layout.version == Py_Version >> 16) {
      return &layout;
    }
  }
  return nullptr;
}

// Reads memory that is known to be mapped.
struct Direct {
  template <typename Value>
  Value get(uintptr_t address) {
    Value value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
};

// Reads memory through the kernel, which returns an error if a plain read would crash.
class Careful {
 public:
  Careful() {
    failed_ = pipe(ends_) != 0;
    opened_ = !failed_;
  }

  ~Careful() {
    if (opened_) {
      close(ends_[0]);
      close(ends_[1]);
    }
  }

  template <typename Value>
  Value get(uintptr_t address) {
    Value value{};
    failed_ = failed_ ||
        write(ends_[1], reinterpret_cast<const void*>(address), sizeof value) != sizeof value ||
        read(ends_[0], &value, sizeof value) != sizeof value;
    return value;
  }

  // Whether an address can be written to; its content stays the same.
  bool can_write(void* address) {
    return opened_ && write(ends_[1], address, sizeof(void*)) == sizeof(void*) &&
        read(ends_[0], address, sizeof(void*)) == sizeof(void*);
  }

  bool failed() const {
    return failed_;
  }

 private:
  int ends_[2];
  bool opened_;
  bool failed_;
};

// Walks the frames of Python code, innermost first.
template <typename Read>
class Frames {
 public:
  Frames(const Layout& layout, Read& read, PyThreadState* thread)
      : layout_(layout), read_(read) {
    frame_ = word(reinterpret_cast<uintptr_t>(thread) + layout.frames);
    if (layout.indirect >= 0 && frame_ != 0) {
      frame_ = word(frame_ + layout.indirect);
    }
    skip_c();
  }

  bool at_end() const {
    return frame_ == 0;
  }

  void step() {
    frame_ = word(frame_ + layout_.previous);
    skip_c();
  }

  // 0 at the end.
  uintptr_t address() const {
    return frame_;
  }

  uintptr_t code() const {
    // 3.14 tags the low bits
    return word(frame_ + layout_.code) & ~uintptr_t{7};
  }

  // The address of the running instruction.
  uintptr_t instruction() const {
    return word(frame_ + layout_.instruction);
  }

 private:
  uintptr_t word(uintptr_t address) const {
    return read_.template get<uintptr_t>(address);
  }

  void skip_c() {
    while (frame_ != 0 && read_.template get<char>(frame_ + layout_.owner) >= kOwnedByInterpreter) {
      frame_ = word(frame_ + layout_.previous);
    }
  }

  const Layout& layout_;
  Read& read_;
  uintptr_t frame_;
};

// The unit of a running instruction; before the first one, that of the first.
inline int64_t unit_of(const Layout& layout, uintptr_t code, uintptr_t instruction) {
  const auto bytes = static_cast<int64_t>(instruction - code) - layout.instructions;
  return bytes < 0 ? 0 : bytes / 2;
}

// Looks up a line in a code object's table (CPython's Objects/locations.md); -1 for code without a
// line. The first byte of an entry has the high bit set, and no other byte does.
int line_in(const uint8_t* table, const uint8_t* end, int first_line, int64_t unit) {
  constexpr int kNoLine = 15, kLongForm = 14, kNoColumns = 13, kOneLine = 10;
  int64_t line = first_line;
  int64_t begun = 0;
  while (table < end) {
    const int kind = (*table >> 3) & 15;
    const int units = (*table & 7) + 1;
    ++table;
    if (kind == kLongForm || kind == kNoColumns) {
      uint64_t number = 0;
      for (int shift = 0; table < end; shift += 6) {
        number |= static_cast<uint64_t>(*table & 63) << shift;
        if (!(*table++ & 64) || shift >= 54) {
          break;
        }
      }
      const auto distance = static_cast<int64_t>(number >> 1);
      line += number & 1 ? -distance : distance;
    } else if (kind >= kOneLine && kind < kNoColumns) {
      line += kind - kOneLine;
    }
    begun += units;
    if (unit < begun) {
      return kind == kNoLine ? -1 : static_cast<int>(line);
    }
    while (table < end && !(*table & 0x80)) {
      ++table;
    }
  }
  return -1;
}

int line_of(const Layout& layout, uintptr_t code, int64_t unit) {
  Direct read;
  auto* table = read.get<PyObject*>(code + layout.line_table);
  const auto* bytes = reinterpret_cast<const uint8_t*>(PyBytes_AsString(table));
  return line_in(bytes, bytes + PyBytes_Size(table), read.get<int>(code + layout.first_line), unit);
}

// From 3.12 on a class that was called often runs its __init__ below a frame without lines, which
// the public functions leave out. The name of its code is its file name too.
template <typename Read>
bool is_shim(const Layout& layout, Read& read, uintptr_t code) {
  return read.template get<int>(code + layout.first_line) == 0 &&
      read.template get<uintptr_t>(code + layout.filename) ==
          read.template get<uintptr_t>(code + layout.qualname);
}

bool is_attribute(PyObject* object, const char* name, uintptr_t value) {
  PyObject* attribute = PyObject_GetAttrString(object, name);
  if (attribute == nullptr) {
    PyErr_Clear();
    return false;
  }
  const bool same = reinterpret_cast<uintptr_t>(attribute) == value;
  Py_DecRef(attribute);
  return same;
}

bool is_same_frame(const Layout& layout, Careful& read, Frames<Careful>& own, PyObject* frame) {
  const uintptr_t code = own.code();
  const int64_t unit = unit_of(layout, code, own.instruction());
  auto* object = reinterpret_cast<PyObject*>(code);
  PyObject* expected = PyFrame_GetCode(frame);
  const bool same = object == expected &&
      read.get<char*>(code + kTypeOfObject) == PyCode_Type &&
      is_attribute(object, "co_filename", read.get<uintptr_t>(code + layout.filename)) &&
      is_attribute(object, "co_qualname", read.get<uintptr_t>(code + layout.qualname)) &&
      is_attribute(object, "co_linetable", read.get<uintptr_t>(code + layout.line_table)) &&
      2 * unit == PyFrame_GetLasti(frame) &&
      unit < read.get<int64_t>(code + kSizeOfCode) && !read.failed() &&
      line_of(layout, code, unit) == PyFrame_GetLineNumber(frame);
  Py_DecRef(expected);
  return same;
}

// Compares the layout with the public functions on the whole stack of the calling thread, which
// must hold the GIL.
bool check_layout(const Layout& layout) {
  Careful read;
  PyThreadState* thread = PyThreadState_Get();
  Frames<Careful> own(layout, read, thread);
  PyObject* frame = PyThreadState_GetFrame(thread);
  bool same = PyGILState_GetThisThreadState() == thread;
  while (same && frame != nullptr) {
    while (!own.at_end() && is_shim(layout, read, own.code())) {
      own.step();
    }
    same = !own.at_end() && is_same_frame(layout, read, own, frame);
    own.step();
    PyObject* back = PyFrame_GetBack(frame);
    Py_DecRef(frame);
    frame = back;
  }
  if (frame != nullptr) {
    Py_DecRef(frame);
  }
  return same && own.at_end() && !read.failed();
}

}  // namespace
