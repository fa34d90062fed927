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

// One row, as Python reads it.
struct NodeEvent {
  uint64_t address;
  int64_t size;  // 0: the block was freed; -1: the last of the running calls ended
  int32_t function, node;  // numbers of their names, -1 for none
};

// The caller holds the lock.
struct NodeLog {
  static constexpr size_t kMaxEvents = 1 << 21;  // 48 MiB

  SpinLock lock;
  std::atomic<int64_t> running{0};  // calls
  std::vector<NodeEvent> events;
  size_t finished = 0;  // number of events up to the last moment at which no call ran
  bool has_dropped = false;  // whether an event had no room

  bool is_on() const {
    return running.load(std::memory_order_relaxed) > 0;
  }

  void add(const NodeEvent& event) {
    // an end always has room: it separates calls
    if (events.size() >= kMaxEvents && event.size >= 0) {
      has_dropped = true;
      return;
    }
    try {
      events.push_back(event);
    } catch (const std::bad_alloc&) {
      has_dropped = true;
    }
  }

  // Returns the number of events that can be taken.
  int64_t end_call() {
    // a child forked during a call has a count of 0 already
    const int64_t left = std::max<int64_t>(0, running.load() - 1);
    running.store(left, std::memory_order_relaxed);
    if (left == 0) {
      add(NodeEvent{0, -1, -1, -1});
      finished = events.size();
    }
    return static_cast<int64_t>(finished);
  }
};

NodeLog& g_node_log = *new NodeLog;

// `node` is the number of the running node's name, -1 for none.
void log_node(const void* block, int64_t size, int32_t node) {
  Call call;
  g_calls.here(&call);
  const Holding holding(g_node_log.lock);
  g_node_log.add(NodeEvent{reinterpret_cast<uintptr_t>(block), size, call.function, node});
}

void log_free(const void* block) {
  const Holding holding(g_node_log.lock);
  g_node_log.add(NodeEvent{reinterpret_cast<uintptr_t>(block), 0, -1, -1});
}

void follow_forks() {
  pthread_atfork(
      [] { g_node_log.lock.lock(); }, [] { g_node_log.lock.unlock(); },
      [] {
        g_node_log.running.store(0);
        g_node_log.events.clear();
        g_node_log.finished = 0;
        g_node_log.has_dropped = false;
        g_node_log.lock.unlock();
      });
}

}  // namespace

// Ending the scope returns the number of events that can be taken.
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

// Returns the number of events of finished calls, and takes them if there are at most `most`.
TL_EXPORT int64_t tl_nodes_take(NodeEvent* found, int64_t most) {
  const Holding holding(g_node_log.lock);
  std::vector<NodeEvent>& events = g_node_log.events;
  const auto last = events.begin() + g_node_log.finished;
  const auto count = static_cast<int64_t>(g_node_log.finished);
  if (count <= most) {
    std::copy(events.begin(), last, found);
    events.erase(events.begin(), last);
    g_node_log.finished = 0;
    if (events.empty()) {
      events.shrink_to_fit();
    }
  }
  return count;
}

// Tells whether events were dropped since the last call of this.
TL_EXPORT int tl_nodes_dropped() {
  const Holding holding(g_node_log.lock);
  return std::exchange(g_node_log.has_dropped, false);
}
