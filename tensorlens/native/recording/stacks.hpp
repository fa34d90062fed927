// Python stacks, each kept once, with the line of each frame and the module that it calls.
//
// As for births, no references are taken and the GIL is not needed (see frames.hpp).

#pragma once

#include "alloc_sites.hpp"
#include "nodes.hpp"

#include <deque>
#include <utility>
#include <vector>

extern "C" char PyCell_Type[];

namespace {

constexpr int kCellContents = 16;

// of all stacks together, so that a program with endless new ones cannot exhaust the host
constexpr size_t kMaxFrames = 4'000'000;

struct StackFrame {
  int32_t line;    // number of a line (see Lines)
  int32_t module;  // -1 if the frame is not the call of a module
};

struct Captured {
  int32_t stack = kNoStack;
  Birth birth;
};

// Modules by address, with the name of their type when first met.
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
      // new, or another module at the address of one that is gone
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

// A stack: its innermost frame and the stack outside of that (kNoStack: none), which is shared.
struct StackNode {
  int32_t outer;
  StackFrame frame;
};

Numbered<StackNode>& g_stacks = *new Numbered<StackNode>;
// captured stacks for which there was no room
std::atomic<int64_t> g_lost_stacks{0};

// Code of the function that calls modules, kept alive by whoever sets it; its first local variable
// is the module. 0 if modules are not noted.
std::atomic<uintptr_t> g_module_call{0};

// All that determines a frame's line and module.
struct FrameKey {
  uintptr_t code, instruction;
  uintptr_t module, type;  // of the module that the frame calls; 0: none

  bool operator==(const FrameKey& other) const {
    return code == other.code && instruction == other.instruction && module == other.module &&
        type == other.type;
  }
};

// A frame of the stack captured last, and results for the stack from the outermost frame to it.
struct TrailFrame {
  FrameKey key;
  int32_t stack;
  int32_t line;
  Birth birth;  // its line is kNoBirth until a frame of the user's code is met
};

// Results for the frames of the stack captured last, outermost first: outer frames seldom change
// between two events. Threads that share a memo share its trail.
struct Trail {
  uint64_t forgotten = 0;  // code objects destroyed by then
  int length = 0;
  TrailFrame frames[kMaxDepth];
};

Trail& trail_of(Memo& memo) {
  static Trail trails[1 << kMemoBits];
  return trails[&memo - g_memos];
}

FrameKey key_of(const Frames<Direct>& frames, uintptr_t module_call) {
  Direct read;
  FrameKey key{frames.code(), frames.instruction(), 0, 0};
  if (key.code == module_call) {
    key.module = read.get<uintptr_t>(frames.address() + g_layout->locals) & ~uintptr_t{7};
    if (key.module != 0 && read.get<char*>(key.module + kTypeOfObject) == PyCell_Type) {
      // an inner function uses the variable too
      key.module = read.get<uintptr_t>(key.module + kCellContents);
    }
    key.type = key.module == 0 ? 0 : read.get<uintptr_t>(key.module + kTypeOfObject);
  }
  return key;
}

// Fills in a frame's results from those of `outer`; false if there is no memory.
bool extend_trail(Memo& memo, const FrameKey& key, const TrailFrame* outer, TrailFrame& frame) {
  Seen* const seen = look_up(memo, key.code);
  if (seen == nullptr) {
    return false;
  }
  if (seen->shim && outer != nullptr) {
    frame = *outer;
    frame.key = key;
    return true;
  }
  frame.key = key;
  frame.line = birth_at(seen, key.code, unit_of(*g_layout, key.code, key.instruction));
  frame.birth = outer == nullptr ? Birth() : outer->birth;
  if (!seen->foreign) {
    frame.birth = Birth{frame.line, kNoBirth};
  } else if (seen->model) {
    frame.birth.model = frame.line;
  }
  const int32_t module = key.module == 0 ? -1 : g_modules.number(key.module);
  // a stack outside was lost for want of room, so this one is too
  const bool lost = outer != nullptr && outer->stack == kNoStack;
  const int32_t around = outer == nullptr ? kNoStack : outer->stack;
  const Holding holding(g_stacks.lock);
  frame.stack = lost ? kNoStack
      : g_stacks.number(StackNode{around, StackFrame{frame.line, module}}, kMaxFrames);
  return true;
}

Captured capture_on(Memo& memo, PyThreadState* thread) {
  Direct read;
  FrameKey keys[kMaxDepth];  // innermost first
  int length = 0;
  const uintptr_t module_call = g_module_call.load(std::memory_order_relaxed);
  for (Frames<Direct> frames(*g_layout, read, thread); length < kMaxDepth && !frames.at_end();
       frames.step()) {
    keys[length++] = key_of(frames, module_call);
  }
  if (length == 0) {
    return Captured();
  }
  Trail& trail = trail_of(memo);
  const uint64_t forgotten = g_forgotten.load(std::memory_order_acquire);
  int known = 0;
  if (trail.forgotten == forgotten) {
    while (known < std::min(length, trail.length) &&
           trail.frames[known].key == keys[length - 1 - known]) {
      ++known;
    }
  }
  trail.forgotten = forgotten;
  for (trail.length = known; trail.length < length; ++trail.length) {
    TrailFrame* const frame = &trail.frames[trail.length];
    const TrailFrame* const outer = trail.length == 0 ? nullptr : frame - 1;
    if (!extend_trail(memo, keys[length - 1 - trail.length], outer, *frame)) {
      return Captured();
    }
  }
  const TrailFrame& innermost = trail.frames[length - 1];
  if (innermost.stack == kNoStack) {
    g_lost_stacks.fetch_add(1, std::memory_order_relaxed);
  }
  Birth birth = innermost.birth;
  birth.line = birth.line == kNoBirth ? innermost.line : birth.line;
  return Captured{innermost.stack, birth};
}

// Address of the calling thread's innermost frame, which stays while C++ code called by it runs. 0
// on threads without Python code.
uintptr_t innermost_frame() {
  PyThreadState* const thread = watched_thread();
  if (thread == nullptr) {
    return 0;
  }
  Direct read;
  return Frames<Direct>(*g_layout, read, thread).address();
}

// Whether the calling thread's innermost Python function has this name; true if unknown.
bool is_in_function(const char32_t* qualname) {
  PyThreadState* const thread = watched_thread();
  if (thread == nullptr) {
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
  return seen_here(&capture_on, Captured());
}

}  // namespace
