// The graph node that allocates, as its framework states it, and the calls of graph functions, as
// Python states them: graphs run on threads without Python code.

#pragma once

#include "blocks.hpp"
#include "stacks.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

namespace {

// Returns the number of the name of this thread's running node, -1 for none. Null if the framework
// calls hooks of operators instead.
std::atomic<int32_t (*)()> g_node_here{nullptr};

struct Call {
  int64_t token = 0;
  uintptr_t thread = 0;
  int32_t function = -1;
  Captured at;
};

// Calls of graph functions that have not returned.
class Calls {
 public:
  int64_t begin(int32_t function, Captured at) {
    const auto thread = reinterpret_cast<uintptr_t>(PyGILState_GetThisThreadState());
    const Holding holding(lock);
    calls_.push_back(Call{++last_, thread, function, at});
    count_.store(calls_.size(), std::memory_order_relaxed);
    return last_;
  }

  void end(int64_t token) {
    const Holding holding(lock);
    calls_.erase(
        std::remove_if(
            calls_.begin(), calls_.end(), [&](const Call& call) { return call.token == token; }),
        calls_.end());
    count_.store(calls_.size(), std::memory_order_relaxed);
  }

  // Finds the innermost call whose nodes this thread may run. A thread with Python code runs nodes
  // of its own calls. Others run nodes of any, so all calls must then be from one thread.
  bool here(Call* found) {
    if (count_.load(std::memory_order_relaxed) == 0) {
      return false;
    }
    const auto thread = reinterpret_cast<uintptr_t>(PyGILState_GetThisThreadState());
    const Holding holding(lock);
    const Call* innermost = nullptr;
    for (const Call& call : calls_) {
      if (thread != 0 && call.thread != thread) {
        continue;
      }
      if (innermost != nullptr && call.thread != innermost->thread) {
        return false;
      }
      innermost = &call;
    }
    if (innermost != nullptr) {
      *found = *innermost;
    }
    return innermost != nullptr;
  }

  void clear() {
    calls_.clear();
    count_.store(0, std::memory_order_relaxed);
  }

  SpinLock lock;

 private:
  std::vector<Call> calls_;
  std::atomic<size_t> count_{0};
  int64_t last_ = 0;
};

Calls& g_calls = *new Calls;

Origin origin_here() {
  Origin origin{birth_here()};
  if (!g_watching.load(std::memory_order_relaxed)) {
    return origin;
  }
  Call call;
  if (g_calls.here(&call)) {
    origin.function = call.function;
    if (origin.birth.line == kNoBirth) {
      origin.birth = call.at.birth;
    }
  }
  if (const auto node_here = g_node_here.load(std::memory_order_relaxed)) {
    origin.node = node_here();
  }
  return origin;
}

}  // namespace
