// Whole Python stacks, each kept once: its lines, and the module whose call a frame is.
//
// As with births, no Python object is referred to and the GIL is not asked for (see frames.hpp).

#pragma once

#include "alloc_sites.hpp"
#include "nodes.hpp"

#include <deque>
#include <utility>
#include <vector>

extern "C" char PyCell_Type[];

namespace {

constexpr int kContentOfCell = 16;

// of all stacks together: a program that makes endless new ones must not eat the host
constexpr size_t kMostFrames = 4'000'000;

struct StackFrame {
  int32_t line;    // number of a line (see Lines)
  int32_t module;  // -1 where the frame is no module's call
};

struct Captured {
  int32_t stack;
  Birth birth;
};

// Modules by their address, with the name of their type as it was when they were first met.
class Modules {
 public:
  struct Met {
    uintptr_t address;
    uintptr_t type;
    std::string name;
  };

  int32_t number(uintptr_t module) {
    Direct read;
    const auto type = read.get<uintptr_t>(module + kTypeOfObject);
    const Holding holding(lock);
    const auto [entry, fresh] = numbers_.emplace(module, -1);
    if (fresh || met_[entry->second].type != type) {
      // also where another module has come to lie where one was
      constexpr int kNameOfType = 24;
      entry->second = static_cast<int32_t>(met_.size());
      met_.push_back(Met{module, type, read.get<const char*>(type + kNameOfType)});
      count_.store(static_cast<int64_t>(met_.size()), std::memory_order_relaxed);
    }
    return entry->second;
  }

  const std::deque<Met>& met() const {
    return met_;
  }

  int64_t count() const {
    return count_.load(std::memory_order_relaxed);
  }

  SpinLock lock;

 private:
  std::unordered_map<uintptr_t, int32_t> numbers_;
  std::deque<Met> met_;
  std::atomic<int64_t> count_{0};
};

Modules& g_modules = *new Modules;

class Stacks {
 public:
  // Gives the number of the stack; the frames are innermost first.
  int32_t number(const StackFrame* frames, int length) {
    const uint64_t hash = hash_of_frames(frames, length);
    const Holding holding(lock);
    if (2 * (starts_.size() + 1) > slots_.size()) {
      grow();
    }
    size_t index = hash & (slots_.size() - 1);
    for (; slots_[index].number >= 0; index = (index + 1) & (slots_.size() - 1)) {
      if (slots_[index].hash == hash && is_same(slots_[index].number, frames, length)) {
        return slots_[index].number;
      }
    }
    if (frames_.size() + length > kMostFrames) {
      ++lost;
      return kNoStack;
    }
    const auto number = static_cast<int32_t>(starts_.size());
    starts_.push_back(static_cast<int64_t>(frames_.size()));
    frames_.insert(frames_.end(), frames, frames + length);
    slots_[index] = Slot{hash, number};
    return number;
  }

  int64_t count() const {
    return static_cast<int64_t>(starts_.size());
  }
  const std::vector<StackFrame>& frames() const {
    return frames_;
  }
  const std::vector<int64_t>& starts() const {
    return starts_;
  }

  SpinLock lock;
  int64_t lost = 0;

 private:
  struct Slot {
    uint64_t hash = 0;
    int32_t number = -1;
  };

  static uint64_t hash_of_frames(const StackFrame* frames, int length) {
    uint64_t hash = static_cast<uint64_t>(length);
    for (int index = 0; index < length; ++index) {
      uint64_t frame;
      std::memcpy(&frame, &frames[index], sizeof frame);
      hash = (hash ^ frame) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    return hash;
  }

  bool is_same(int32_t number, const StackFrame* frames, int length) const {
    const int64_t begin = starts_[number];
    const int64_t end = static_cast<size_t>(number) + 1 < starts_.size()
        ? starts_[number + 1] : static_cast<int64_t>(frames_.size());
    return end - begin == length &&
        std::memcmp(&frames_[begin], frames, length * sizeof(StackFrame)) == 0;
  }

  void grow() {
    const std::vector<Slot> old = std::exchange(
        slots_, std::vector<Slot>(std::max<size_t>(1024, 2 * slots_.size())));
    for (const Slot& slot : old) {
      if (slot.number >= 0) {
        size_t index = slot.hash & (slots_.size() - 1);
        while (slots_[index].number >= 0) {
          index = (index + 1) & (slots_.size() - 1);
        }
        slots_[index] = slot;
      }
    }
  }

  std::vector<Slot> slots_;
  std::vector<StackFrame> frames_;
  std::vector<int64_t> starts_;
};

Stacks& g_stacks = *new Stacks;

// The code of the function that calls modules, kept alive by the caller; its first local is the
// module. 0 where modules are not told.
std::atomic<uintptr_t> g_module_call{0};

void lock_stacks() {
  g_modules.lock.lock();
  g_stacks.lock.lock();
}

void unlock_stacks() {
  g_stacks.lock.unlock();
  g_modules.lock.unlock();
}

Captured capture_on(Memo& memo, PyThreadState* thread) {
  Direct read;
  StackFrame found[kDeepest];
  int length = 0;
  Birth birth;
  const uintptr_t module_call = g_module_call.load(std::memory_order_relaxed);
  Frames<Direct> frames(*g_layout, read, thread);
  for (; length < kDeepest && !frames.at_end(); ++length, frames.step()) {
    const uintptr_t code = frames.code();
    Seen* seen = look_up(memo, code);
    if (seen == nullptr) {
      return Captured{kNoStack, Birth()};
    }
    StackFrame& frame = found[length];
    frame.line = birth_at(seen, code, frames.unit(code));
    frame.module = -1;
    if (code == module_call) {
      auto module = read.get<uintptr_t>(frames.address() + g_layout->locals) & ~uintptr_t{7};
      if (module != 0 && read.get<char*>(module + kTypeOfObject) == PyCell_Type) {
        // a variable that an inner function uses too
        module = read.get<uintptr_t>(module + kContentOfCell);
      }
      frame.module = module == 0 ? -1 : g_modules.number(module);
    }
    if (birth.line == kNoBirth) {
      birth.line = seen->foreign ? kNoBirth : frame.line;
      const bool model = seen->model || (seen->wrapper && length == 0);
      birth.model = model && birth.model == kNoBirth ? frame.line : birth.model;
    }
  }
  if (length == 0) {
    return Captured{kNoStack, Birth()};
  }
  birth.line = birth.line == kNoBirth ? found[0].line : birth.line;
  return Captured{g_stacks.number(found, length), birth};
}

// The innermost frame of the calling thread: while C++ code runs below it, nothing outside of it
// can change. 0 on threads without Python code.
uintptr_t innermost_frame() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || !g_watching.load(std::memory_order_relaxed)) {
    return 0;
  }
  Direct read;
  return Frames<Direct>(*g_layout, read, thread).address();
}

// Whether the innermost Python function of the calling thread is called so; true where nobody knows.
bool is_in_function(const char32_t* qualname) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || !g_watching.load(std::memory_order_relaxed)) {
    return true;
  }
  Direct read;
  Frames<Direct> frames(*g_layout, read, thread);
  try {
    return frames.at_end() || code_text(frames.code(), g_layout->qualname) == qualname;
  } catch (...) {
    return true;  // no memory for a text
  }
}

Captured capture() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr || !g_watching.load(std::memory_order_relaxed)) {
    return Captured{kNoStack, Birth()};
  }
  Memo& memo = g_memos[hash_of(reinterpret_cast<uintptr_t>(thread)) >> (64 - kMemoBits)];
  const Holding holding(memo.lock);
  // the interpreter's exit frees the states of other threads, and switches off before
  if (!g_watching.load(std::memory_order_relaxed)) {
    return Captured{kNoStack, Birth()};
  }
  try {
    return capture_on(memo, thread);
  } catch (...) {
    return Captured{kNoStack, Birth()};  // no memory for a text
  }
}

}  // namespace
