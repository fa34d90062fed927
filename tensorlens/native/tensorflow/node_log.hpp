// Log of allocations and frees while calls of graph functions are followed.

#pragma once

#include "counting.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace {

struct NodeEvent {
  int64_t size;  // negative for a free; 0: the last of the running calls ended
  int32_t function;  // number of its name, -1 for none
  int32_t node;  // likewise; of an end: whether an event of these calls had no room
};

struct NodeBlock {
  uintptr_t key;
  NodeEvent made;
};

// Callers hold the lock, except for is_on().
struct NodeLog {
  static constexpr size_t kMaxEvents = 1 << 21;  // 32 MiB

  SpinLock lock;
  std::atomic<int64_t> running{0};  // calls
  std::vector<NodeEvent> events;
  size_t finished = 0;  // number of events up to the last moment at which no call ran
  bool has_dropped = false;
  Table<NodeBlock> blocks;  // those that the running calls made and did not free

  bool is_on() const {
    return running.load(std::memory_order_relaxed) > 0;
  }

  bool add(const NodeEvent& event) {
    try {
      // an end always has room: it separates calls
      if (events.size() < kMaxEvents || event.size == 0) {
        events.push_back(event);
        return true;
      }
    } catch (const std::bad_alloc&) {
    }
    has_dropped = true;
    return false;
  }

  // Returns the number of events that can be taken.
  int64_t end_call() {
    // a child forked during a call has a count of 0 already
    const int64_t left = std::max<int64_t>(0, running.load() - 1);
    running.store(left, std::memory_order_relaxed);
    if (left == 0) {
      add(NodeEvent{0, -1, std::exchange(has_dropped, false)});
      finished = events.size();
      blocks.release();
    }
    return static_cast<int64_t>(finished);
  }
};

NodeLog& g_node_log = *new NodeLog;

// `node` is the number of the running node's name, -1 for none.
void log_node(const void* block, int64_t size, int32_t node) {
  Call call;
  g_calls.here(&call);
  const NodeEvent event{size, call.function, node};
  const Holding holding(g_node_log.lock);
  if (g_node_log.add(event)) {
    NodeBlock* const made = g_node_log.blocks.put(reinterpret_cast<uintptr_t>(block));
    if (made == nullptr) {
      g_node_log.has_dropped = true;
    } else {
      made->made = event;
    }
  }
}

// A free has the names of the allocation; that of a block from before the calls is not logged.
void log_free(const void* block) {
  const Holding holding(g_node_log.lock);
  NodeBlock freed;
  if (g_node_log.blocks.take(reinterpret_cast<uintptr_t>(block), &freed)) {
    g_node_log.add(NodeEvent{-freed.made.size, freed.made.function, freed.made.node});
  }
}

void follow_forks() {
  pthread_atfork(
      [] { g_node_log.lock.lock(); }, [] { g_node_log.lock.unlock(); },
      [] {
        g_node_log.running.store(0);
        g_node_log.events.clear();
        g_node_log.finished = 0;
        g_node_log.has_dropped = false;
        g_node_log.blocks.release();
        g_node_log.lock.unlock();
      });
}

}  // namespace

// Begins a call; the end of its scope returns the number of events that can be taken.
TL_EXPORT PyObject* tl_nodes_begin() {
  {
    const Holding holding(g_node_log.lock);
    g_node_log.running.fetch_add(1, std::memory_order_relaxed);
  }
  return scope_capsule(0, [](int64_t) {
    const Holding holding(g_node_log.lock);
    return g_node_log.end_call();
  });
}

// Takes the events of finished calls: size, function and node.
TL_EXPORT Columns* tl_nodes_take() {
  const Holding holding(g_node_log.lock);
  std::vector<NodeEvent>& events = g_node_log.events;
  const auto last = events.begin() + g_node_log.finished;
  Columns* const taken = listed<ColumnsOf<int64_t, int32_t, int32_t>>([&](auto& list) {
    std::for_each(events.begin(), last, [&](const NodeEvent& event) {
      list.add(event.size, event.function, event.node);
    });
  });
  if (taken != nullptr) {
    events.erase(events.begin(), last);
    g_node_log.finished = 0;
    if (events.empty()) {
      events.shrink_to_fit();
    }
  }
  return taken;
}
