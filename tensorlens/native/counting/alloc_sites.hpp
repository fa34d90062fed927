// Births: the innermost line of the user's own code on the calling thread and, if that calls a
// model of a library, the innermost line of the model's own code.
//
// Nothing here takes a reference to a Python object or the GIL (see frames.hpp). The text of a line
// is stored when it first allocates. What is stored by a code object's address is dropped when the
// code object is destroyed, so that another one at that address is not taken for it.

#pragma once

#include "columns.hpp"
#include "frames.hpp"
#include "table.hpp"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

extern "C" ssize_t PyUnicode_GetLength(PyObject*);
extern "C" uint32_t PyUnicode_ReadChar(PyObject*, ssize_t);
extern "C" void* PyType_GetSlot(PyObject*, int);

namespace {

constexpr int32_t kNoBirth = -1;

// Numbers of the source lines that made a block (see Lines): the user's, and the one inside a
// library's model.
struct Birth {
  int32_t line = kNoBirth;
  int32_t model = kNoBirth;
};

// frames read of one stack: a limit to the cost of an allocation
constexpr int kMaxDepth = 512;

// A line is "filename NUL line NUL function", with the line number as one character.
using Lines = Texts<std::u32string>;

// never destroyed: threads may still allocate then
Lines& g_lines = *new Lines;

// A code object met on a stack.
struct Seen {
  uintptr_t key;
  int32_t* births;  // by instruction unit: 1 + the number of its line, 0 if not computed yet
  int32_t units;
  bool shim;  // see is_shim; a shim is foreign
  bool foreign;
  bool model;
};

// Code objects by address. There are several memos, so that threads seldom wait for each other.
struct alignas(64) Memo {
  SpinLock lock;
  Table<Seen> codes;
};

constexpr int kMemoBits = 3;
Memo g_memos[1 << kMemoBits];

// These are written once, before births are watched.
const Layout* g_layout = nullptr;
// folders of code that is not the user's, with a separator at the end
const std::vector<std::u32string>* g_foreign_folders = nullptr;
// names of functions that compute a layer, and packages whose layers are not a model's
const std::vector<std::u32string>* g_layers = nullptr;
const std::vector<std::u32string>* g_packages = nullptr;

// Changed with all memos locked: once it is off, no thread is reading a stack.
std::atomic<bool> g_watching{false};

void lock_births() {
  for (Memo& memo : g_memos) {
    memo.lock.lock();
  }
  g_lines.lock.lock();
}

void unlock_births() {
  g_lines.lock.unlock();
  for (Memo& memo : g_memos) {
    memo.lock.unlock();
  }
}

// Both functions read a string that never changes, so no GIL is needed.
std::u32string text_of(PyObject* string) {
  std::u32string text;
  const ssize_t length = PyUnicode_GetLength(string);
  text.reserve(length > 0 ? length : 0);
  for (ssize_t index = 0; index < length; ++index) {
    text.push_back(static_cast<char32_t>(PyUnicode_ReadChar(string, index)));
  }
  return text;
}

std::u32string code_text(uintptr_t code, int field) {
  return text_of(Direct().get<PyObject*>(code + field));
}

constexpr char32_t kInstalled[] = U"/site-packages/";
constexpr char32_t kDistribution[] = U"/dist-packages/";

bool is_foreign(const std::u32string& filename) {
  for (const std::u32string& folder : *g_foreign_folders) {
    // a star matches any part of the name
    const size_t star = folder.find(U'*');
    const size_t begin = std::min(star, folder.size());
    if (filename.compare(0, begin, folder, 0, begin) == 0 &&
        (star == std::u32string::npos ||
         filename.find(folder.substr(star + 1), begin) != std::u32string::npos)) {
      return true;
    }
  }
  return filename.find(kInstalled) != std::u32string::npos ||
      filename.find(kDistribution) != std::u32string::npos;
}

bool is_one_of(const std::vector<std::u32string>* words, const std::u32string& word) {
  return std::find(words->begin(), words->end(), word) != words->end();
}

// The same rule as Frame.model of tensorlens.records.logs.stacks.
bool is_model(const std::u32string& filename, const std::u32string& qualname) {
  const size_t dot = qualname.rfind(U'.');
  if (!is_one_of(g_layers, qualname.substr(dot + 1))) {
    return false;
  }
  const std::u32string locals = U"<locals>";
  if (dot != std::u32string::npos && dot >= locals.size() &&
      qualname.compare(dot - locals.size(), locals.size(), locals) == 0) {
    return false;
  }
  size_t inside = 0;
  for (const std::u32string folder : {kInstalled, kDistribution}) {
    const size_t place = filename.rfind(folder);
    inside = place == std::u32string::npos ? inside : std::max(inside, place + folder.size());
  }
  return inside != 0 &&
      !is_one_of(g_packages, filename.substr(inside, filename.find(U'/', inside) - inside));
}

Seen* look_up(Memo& memo, uintptr_t code) {
  Seen* seen = memo.codes.find(code);
  if (seen == nullptr) {
    const std::u32string filename = code_text(code, g_layout->filename);
    Direct read;
    const bool shim = is_shim(*g_layout, read, code);
    const bool foreign = shim || is_foreign(filename);
    const std::u32string qualname = foreign ? code_text(code, g_layout->qualname) : U"";
    const bool model = foreign && is_model(filename, qualname);
    seen = memo.codes.put(code);
    if (seen != nullptr) {
      seen->shim = shim;
      seen->foreign = foreign;
      seen->model = model;
    }
  }
  return seen;
}

int32_t birth_at(Seen* seen, uintptr_t code, int64_t unit) {
  if (seen->births == nullptr) {
    const auto units = Direct().get<int64_t>(code + kSizeOfCode);
    seen->births = static_cast<int32_t*>(std::calloc(units, sizeof(int32_t)));
    seen->units = seen->births == nullptr ? 0 : static_cast<int32_t>(units);
  }
  if (unit >= seen->units) {
    return kNoBirth;
  }
  int32_t& birth = seen->births[unit];
  if (birth == 0) {
    const int line = line_of(*g_layout, code, unit);
    std::u32string text = code_text(code, g_layout->filename);
    text.push_back(0);
    text.push_back(static_cast<char32_t>(
        line > 0 ? line : Direct().get<int>(code + g_layout->first_line)));
    text.push_back(0);
    text += code_text(code, g_layout->qualname);
    birth = 1 + g_lines.number(std::move(text));
  }
  return birth - 1;
}

Birth birth_on(Memo& memo, PyThreadState* thread) {
  Direct read;
  Birth birth;
  uintptr_t innermost_code = 0;
  int64_t innermost_unit = 0;
  Frames<Direct> frames(*g_layout, read, thread);
  for (int depth = 0; depth < kMaxDepth && !frames.at_end(); ++depth, frames.step()) {
    const uintptr_t code = frames.code();
    Seen* seen = look_up(memo, code);
    if (seen == nullptr) {
      return Birth();
    }
    if (!seen->foreign) {
      birth.line = birth_at(seen, code, unit_of(*g_layout, code, frames.instruction()));
      return birth;
    }
    if (seen->model && birth.model == kNoBirth) {
      birth.model = birth_at(seen, code, unit_of(*g_layout, code, frames.instruction()));
    }
    if (depth == 0) {
      innermost_code = code;
      innermost_unit = unit_of(*g_layout, code, frames.instruction());
    }
  }
  // looked up again: the table may have grown
  Seen* const innermost = memo.codes.find(innermost_code);
  if (innermost != nullptr) {
    birth.line = birth_at(innermost, innermost_code, innermost_unit);
  }
  return birth;
}

// The calling thread; null if births are not watched or it runs no Python code.
PyThreadState* watched_thread() {
  return g_watching.load(std::memory_order_relaxed) ? PyGILState_GetThisThreadState() : nullptr;
}

// Returns the result of `look` for the stack of the calling thread, or `nothing`.
template <typename Found>
Found seen_here(Found (*look)(Memo&, PyThreadState*), const Found& nothing) {
  PyThreadState* const thread = watched_thread();
  if (thread == nullptr) {
    return nothing;
  }
  Memo& memo = g_memos[hash_of(reinterpret_cast<uintptr_t>(thread)) >> (64 - kMemoBits)];
  const Holding holding(memo.lock);
  // the interpreter's exit switches this off before it frees the states of other threads
  if (!g_watching.load(std::memory_order_relaxed)) {
    return nothing;
  }
  try {
    return look(memo, thread);
  } catch (...) {
    return nothing;  // no memory for a text
  }
}

// The lines that allocate on the calling thread.
Birth birth_here() {
  return seen_here(&birth_on, Birth());
}

// Code objects are destroyed with the GIL held; no thread waits for the GIL while it locks a memo.

// Number of destroyed code objects, counted before the address can be reused.
std::atomic<uint64_t> g_forgotten{0};

void forget_code(PyObject* code) {
  g_forgotten.fetch_add(1, std::memory_order_release);
  for (Memo& memo : g_memos) {
    Seen seen{};
    {
      const Holding holding(memo.lock);
      memo.codes.take(reinterpret_cast<uintptr_t>(code), &seen);
    }
    std::free(seen.births);
  }
}

using Destructor = void (*)(PyObject*);
Destructor g_destroy_code = nullptr;

void destroy_code(PyObject* code) {
  forget_code(code);
  g_destroy_code(code);
}

// Replaces the destructor of code objects. (Code watchers, from 3.12 on, are limited to eight, and
// each sees one interpreter's code.) Returns false if the destructor is not where it is expected.
bool replace_code_destructor() {
  constexpr int kDestructorSlot = 52;  // Py_tp_dealloc
  constexpr int kDestructorOffset = 48;
  void* const destroy = PyType_GetSlot(reinterpret_cast<PyObject*>(PyCode_Type), kDestructorSlot);
  char* const slot = PyCode_Type + kDestructorOffset;
  if (destroy == nullptr || std::memcmp(slot, &destroy, sizeof destroy) != 0) {
    PyErr_Clear();
    return false;
  }
  g_destroy_code = reinterpret_cast<Destructor>(destroy);
  __atomic_store_n(
      reinterpret_cast<void**>(slot), reinterpret_cast<void*>(&destroy_code), __ATOMIC_RELEASE);
  return true;
}

// Splits a text at NUL characters.
const std::vector<std::u32string>* words_of(const char32_t* words, int64_t length) {
  auto* found = new std::vector<std::u32string>;
  const std::u32string text(words, static_cast<size_t>(length));
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = std::min(text.find(char32_t{0}, begin), text.size());
    found->push_back(text.substr(begin, end - begin));
  }
  return found;
}

}  // namespace

// Returns 0 if births can be watched, 1 if this Python's frames are unknown, 2 if they are not as
// expected, 3 if the destructor of code objects cannot be replaced. Takes folders of code that is
// not the user's, names of functions that compute a layer, and packages whose layers are not a
// model's; all are separated by NUL.
TL_EXPORT int tl_prepare_births(
    const char32_t* folders, int64_t folders_length, const char32_t* layers, int64_t layers_length,
    const char32_t* packages, int64_t packages_length) {
  if (g_layout != nullptr) {
    return 0;
  }
  const Layout* layout = known_layout();
  if (layout == nullptr || sizeof(void*) != 8) {
    return 1;
  }
  if (!check_layout(*layout)) {
    return 2;
  }
  if (!replace_code_destructor()) {
    return 3;
  }
  g_foreign_folders = words_of(folders, folders_length);
  g_layers = words_of(layers, layers_length);
  g_packages = words_of(packages, packages_length);
  g_layout = layout;
  return 0;
}

TL_EXPORT void tl_switch_births(int on) {
  lock_births();
  g_watching.store(on != 0 && g_layout != nullptr, std::memory_order_relaxed);
  unlock_births();
}

// Returns the text of a birth (see Lines), which is never released; null if there is none.
TL_EXPORT const char32_t* tl_birth_line(int32_t number, int64_t* length) {
  const std::u32string* const text = g_lines.text(number);
  *length = text == nullptr ? 0 : static_cast<int64_t>(text->size());
  return text == nullptr ? nullptr : text->data();
}
