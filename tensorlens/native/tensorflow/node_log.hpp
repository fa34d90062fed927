// What the nodes of graph functions are handed and give back while calls are followed.
//
// Which line a node is of only Python can say, and not while it runs. So what happens is written
// down, and Python takes it when the call is over.

#pragma once

#include "counting.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace {

class NodeLog {
 public:
  // one event, as Python reads it
  struct Entry {
    uint64_t address;  // 0: here the calls ended
    int64_t size;      // 0: it was freed
    int32_t function, node;
  };

  bool is_on() const {
    return calls_.load(std::memory_order_relaxed) > 0;
  }

  void begin() {
    const Holding holding(lock);
    calls_.fetch_add(1, std::memory_order_relaxed);
  }

  // Gives whether there is anything to take: not while other calls run.
  int64_t end() {
    const Holding holding(lock);
    // a child forked during a call has a count of 0 already
    calls_.store(std::max<int64_t>(0, calls_.load() - 1), std::memory_order_relaxed);
    if (!is_on() && ended_ < entries_.size()) {
      add(Entry{0, 0, -1, -1});
      ended_ = entries_.size();
    }
    return ended_ > 0;
  }

  // `node` is the number of the name of what runs, -1 for none.
  void allocated(const void* block, int64_t size, int32_t node) {
    Call call{0, 0, -1, Captured{kNoStack, Birth()}};
    g_calls.here(&call);
    const Holding holding(lock);
    if (entries_.size() >= kMostEntries) {
      ++lost_;
      return;
    }
    add(Entry{reinterpret_cast<uintptr_t>(block), size, call.function, node});
  }

  void freed(const void* block) {
    const Holding holding(lock);
    if (entries_.size() < 2 * kMostEntries) {
      add(Entry{reinterpret_cast<uintptr_t>(block), 0, -1, -1});
    }
  }

  // Takes what was written down of calls that are over; it stays where it is until the next time.
  int64_t take(const Entry** start) {
    const Holding holding(lock);
    taken_.clear();
    if (!is_on()) {
      taken_.swap(entries_);
      ended_ = 0;
    }
    *start = taken_.data();
    return static_cast<int64_t>(taken_.size());
  }

  int64_t lost() {
    const Holding holding(lock);
    return lost_;
  }

  void abandon() {
    calls_.store(0);
    entries_.clear();
    ended_ = 0;
  }

  SpinLock lock;

 private:
  static constexpr size_t kMostEntries = 1 << 20;  // 24 MiB, and as much again of frees

  void add(const Entry& entry) {
    try {
      entries_.push_back(entry);
    } catch (const std::bad_alloc&) {
      ++lost_;
    }
  }

  std::atomic<int64_t> calls_{0};
  std::vector<Entry> entries_, taken_;
  size_t ended_ = 0;  // entries of calls that are over
  int64_t lost_ = 0;
};

NodeLog& g_node_log = *new NodeLog;

void node_log_before_fork() {
  g_node_log.lock.lock();
}

void node_log_after_fork() {
  g_node_log.lock.unlock();
}

void node_log_in_child() {
  g_node_log.abandon();
  g_node_log.lock.unlock();
}

}  // namespace

TL_EXPORT PyObject* tl_nodes_begin() {
  g_node_log.begin();
  return begun(0, [](int64_t) { return g_node_log.end(); });
}

TL_EXPORT int64_t tl_nodes_take(const NodeLog::Entry** start) {
  return g_node_log.take(start);
}

// How many allocations there was no room for.
TL_EXPORT int64_t tl_nodes_lost() {
  return g_node_log.lost();
}
