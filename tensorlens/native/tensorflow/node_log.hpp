// Events of the nodes of graph functions while calls are followed: rows, which Python adds up.

#pragma once

#include "counting.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <unordered_set>
#include <vector>

namespace {

// One row, as Python reads it.
struct NodeEvent {
  uint64_t address;
  int64_t size;  // 0: it was freed; -1: no call runs any more
  int32_t function, node;  // numbers of their names, -1 for none
};

// Whoever calls holds the lock.
struct NodeLog {
  // 48 MiB; a call with more is left out as a whole
  static constexpr size_t kMostEvents = 1 << 21;
  // a program that traces anew all the time must not eat the host
  static constexpr size_t kMostNodes = 1 << 16;

  SpinLock lock;
  std::atomic<int64_t> calls{0};
  std::vector<NodeEvent> events;
  size_t over = 0;  // how many of them are of calls that are over
  std::unordered_set<uint64_t> met;
  bool has_fresh = false;  // whether a node was met for the first time among the events
  bool leaves_out = false;  // the call that runs
  int64_t ended = 0;  // calls that ended since none ran

  bool is_on() const {
    return calls.load(std::memory_order_relaxed) > 0;
  }

  void add(const NodeEvent& event) {
    if (leaves_out) {
      return;
    }
    try {
      if (events.size() >= kMostEvents) {
        throw std::bad_alloc();
      }
      events.push_back(event);
      if (event.size > 0) {
        if (met.size() >= kMostNodes) {
          met.clear();
        }
        const uint64_t name = static_cast<uint64_t>(static_cast<uint32_t>(event.function)) << 32 |
            static_cast<uint32_t>(event.node);
        has_fresh |= met.insert(name).second;
      }
    } catch (const std::bad_alloc&) {
      events.erase(events.begin() + over, events.end());
      leaves_out = true;
    }
  }

  int64_t end_call() {
    // a child forked during a call has a count of 0 already
    const int64_t left = std::max<int64_t>(0, calls.load() - 1);
    calls.store(left, std::memory_order_relaxed);
    ++ended;
    if (left == 0) {
      add(NodeEvent{0, -1, -1, -1});
    }
    // of calls that overlap, as of threads, all are left out
    const int64_t left_out = leaves_out ? ended : 0;
    if (left == 0) {
      over = events.size();
      leaves_out = false;
    }
    if (left == 0 || left_out > 0) {
      ended = 0;
    }
    const bool is_fresh = has_fresh && over > 0;
    return left_out > 0 || is_fresh ? -1 - left_out : static_cast<int64_t>(over);
  }
};

NodeLog& g_node_log = *new NodeLog;

// `node` is the number of the name of what runs, -1 for none.
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
        g_node_log.calls.store(0);
        g_node_log.events.clear();
        g_node_log.over = 0;
        g_node_log.ended = 0;
        g_node_log.leaves_out = false;
        g_node_log.lock.unlock();
      });
}

}  // namespace

// The end gives how many events there are, -1 where a node was met for the first time in one, or -1
// less how many calls are left out with this one.
TL_EXPORT PyObject* tl_nodes_begin() {
  {
    const Holding holding(g_node_log.lock);
    g_node_log.calls.fetch_add(1, std::memory_order_relaxed);
  }
  return scope_capsule(0, [](int64_t) {
    const Holding holding(g_node_log.lock);
    return g_node_log.end_call();
  });
}

// Gives how many events there are of calls that are over. Takes them if that is no more than most.
TL_EXPORT int64_t tl_nodes_take(NodeEvent* found, int64_t most) {
  const Holding holding(g_node_log.lock);
  std::vector<NodeEvent>& events = g_node_log.events;
  const auto last = events.begin() + g_node_log.over;
  const auto count = static_cast<int64_t>(g_node_log.over);
  if (count <= most) {
    std::copy(events.begin(), last, found);
    events.erase(events.begin(), last);
    g_node_log.over = 0;
    g_node_log.has_fresh &= !events.empty();
  }
  return count;
}

// Has all nodes met for the first time anew, and gives back the room of a log that is empty.
TL_EXPORT void tl_nodes_forget() {
  const Holding holding(g_node_log.lock);
  g_node_log.met.clear();
  if (g_node_log.events.empty()) {
    g_node_log.events.shrink_to_fit();
  }
}
