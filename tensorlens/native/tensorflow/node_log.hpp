// What the nodes of graph functions are handed while calls are followed, added up by group.
//
// Which nodes make up a group only Python can say, and not while they run. So what happens is
// written down until the call is over; then the nodes that are new are put into their groups, and
// what was written down is added up. Of a call only sums remain.

#pragma once

#include "counting.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace {

// What one group was handed, of all its calls.
struct Group {
  int64_t hits = 0;       // calls in which it was handed anything
  int64_t allocated = 0;  // the most that was handed out in one call
  int64_t peak = 0;       // the most that was there at once
  int64_t net = 0, net_max = 0, net_first = 0;  // what was left when calls ended
};

// The same of the call that runs.
struct NowInGroup {
  int64_t allocated = 0, resident = 0, peak = 0;
  bool touched = false;
};

class NodeLog {
 public:
  // 6 MiB; a call with more is added up as it goes, so far as its nodes are known
  static constexpr size_t kMostEntries = 1 << 18;
  // a program that traces anew all the time must not eat the host
  static constexpr size_t kMostKeys = 1 << 16;

  bool is_on() const {
    return calls_.load(std::memory_order_relaxed) > 0;
  }

  void begin() {
    const Holding holding(lock);
    calls_.fetch_add(1, std::memory_order_relaxed);
  }

  // Gives how many nodes are in no group yet; if none, all is added up.
  int64_t end() {
    const Holding holding(lock);
    // a child forked during a call has a count of 0 already
    calls_.store(std::max<int64_t>(0, calls_.load() - 1), std::memory_order_relaxed);
    if (waiting_ == 0) {
      settle();
    }
    return waiting_;
  }

  // `node` is the number of the name of what runs, -1 for none.
  void allocated(const void* block, int64_t size, int32_t node) {
    Call call{0, 0, -1, Captured{kNoStack, Birth()}};
    g_calls.here(&call);
    const Holding holding(lock);
    try {
      const uint64_t name = static_cast<uint64_t>(static_cast<uint32_t>(call.function)) << 32 |
          static_cast<uint32_t>(node);
      const auto known = numbers_.find(name);
      int32_t key = -1;
      if (known != numbers_.end()) {
        key = known->second;
      } else if (keys_.size() < kMostKeys) {
        key = static_cast<int32_t>(keys_.size());
        keys_.push_back(Key{call.function, node, false, false, {}});
        numbers_.emplace(name, key);
      }
      if (key < 0) {
        ++lost_;
        return;
      }
      note_fresh(key);
      add(Entry{reinterpret_cast<uintptr_t>(block), size, key});
    } catch (const std::bad_alloc&) {
      ++lost_;
    }
  }

  void freed(const void* block) {
    const Holding holding(lock);
    try {
      add(Entry{reinterpret_cast<uintptr_t>(block), 0, -1});
    } catch (const std::bad_alloc&) {
      ++lost_;
    }
  }

  // Takes the nodes that are in no group yet: key, function and node of each.
  int64_t take_fresh(int32_t* found, int64_t most) {
    const Holding holding(lock);
    int64_t count = 0;
    while (count < most && !fresh_.empty()) {
      const int32_t key = fresh_.back();
      fresh_.pop_back();
      *found++ = key;
      *found++ = keys_[key].function;
      *found++ = keys_[key].node;
      ++count;
    }
    return count;
  }

  void place(int32_t key, const int32_t* groups, int64_t count) {
    const Holding holding(lock);
    if (static_cast<size_t>(key) >= keys_.size()) {
      return;
    }
    keys_[key].groups.assign(groups, groups + count);
    keys_[key].placed = true;
    waiting_ -= keys_[key].waits;
    keys_[key].waits = false;
  }

  // Has all nodes put into groups anew.
  void forget_places() {
    const Holding holding(lock);
    const int64_t lost = lost_;
    add_up();
    lost_ = lost;  // of groups that nobody asks for any more, or not yet
    fresh_.clear();
    waiting_ = 0;
    for (Key& key : keys_) {
      key.placed = key.waits = false;
    }
  }

  void settle_now() {
    const Holding holding(lock);
    settle();
  }

  int32_t new_group() {
    const Holding holding(lock);
    groups_.emplace_back();
    running_.emplace_back();
    return static_cast<int32_t>(groups_.size()) - 1;
  }

  Group look(int32_t group) {
    const Holding holding(lock);
    return groups_[group];
  }

  void clear(int32_t group) {
    const Holding holding(lock);
    groups_[group] = Group();
  }

  int64_t lost() {
    const Holding holding(lock);
    return lost_;
  }

  void abandon() {
    calls_.store(0);
    entries_.clear();
    open_.clear();
    for (const int32_t group : touched_) {
      running_[group] = NowInGroup();
    }
    touched_.clear();
  }

  SpinLock lock;

 private:
  struct Key {
    int32_t function, node;
    bool placed, waits;
    std::vector<int32_t> groups;
  };
  struct Entry {
    uintptr_t address;
    int64_t size;  // 0: it was freed
    int32_t key;
  };
  struct Open {
    int64_t size;
    int32_t key;
  };

  void note_fresh(int32_t key) {
    if (!keys_[key].placed && !keys_[key].waits) {
      fresh_.push_back(key);
      keys_[key].waits = true;
      ++waiting_;
    }
  }

  void add(const Entry& entry) {
    if (entries_.size() >= kMostEntries) {
      add_up();
    }
    entries_.push_back(entry);
  }

  void add_up() {
    for (const Entry& entry : entries_) {
      if (entry.size == 0) {
        const auto found = open_.find(entry.address);
        if (found != open_.end()) {
          change(found->second.key, -found->second.size);
          open_.erase(found);
        }
        continue;
      }
      if (!keys_[entry.key].placed) {
        ++lost_;
        continue;
      }
      open_[entry.address] = Open{entry.size, entry.key};
      change(entry.key, entry.size);
    }
    entries_.clear();
  }

  void change(int32_t key, int64_t size) {
    for (const int32_t number : keys_[key].groups) {
      NowInGroup& group = running_[number];
      if (!group.touched) {
        group.touched = true;
        touched_.push_back(number);
      }
      group.resident += size;
      if (size > 0) {
        group.allocated += size;
        group.peak = std::max(group.peak, group.resident);
      }
    }
  }

  void settle() {
    add_up();
    if (is_on()) {
      return;
    }
    for (const int32_t number : touched_) {
      Group& all = groups_[number];
      const NowInGroup& now = running_[number];
      all.net_first = all.hits == 0 ? now.resident : all.net_first;
      all.net_max = all.hits == 0 ? now.resident : std::max(all.net_max, now.resident);
      all.net += now.resident;
      all.allocated = std::max(all.allocated, now.allocated);
      all.peak = std::max(all.peak, now.peak);
      ++all.hits;
      running_[number] = NowInGroup();
    }
    touched_.clear();
    open_.clear();
    if (keys_.size() >= kMostKeys && waiting_ == 0) {
      keys_.clear();
      numbers_.clear();
    }
  }

  std::atomic<int64_t> calls_{0};
  std::unordered_map<uint64_t, int32_t> numbers_;
  std::vector<Key> keys_;
  std::vector<int32_t> fresh_;
  int64_t waiting_ = 0;  // nodes that were met and are in no group yet
  std::vector<Entry> entries_;
  std::unordered_map<uintptr_t, Open> open_;
  std::vector<Group> groups_;
  std::vector<NowInGroup> running_;
  std::vector<int32_t> touched_;
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

TL_EXPORT int64_t tl_nodes_fresh(int32_t* found, int64_t most) {
  return g_node_log.take_fresh(found, most);
}

TL_EXPORT void tl_nodes_place(int32_t key, const int32_t* groups, int64_t count) {
  g_node_log.place(key, groups, count);
}

TL_EXPORT void tl_nodes_forget_places() {
  g_node_log.forget_places();
}

TL_EXPORT void tl_nodes_settle() {
  g_node_log.settle_now();
}

TL_EXPORT int32_t tl_nodes_group() {
  try {
    return g_node_log.new_group();
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Gives hits, allocated, peak, net, net_max and net_first.
TL_EXPORT void tl_nodes_look(int32_t group, int64_t* figures) {
  const Group found = g_node_log.look(group);
  const int64_t all[] = {
      found.hits, found.allocated, found.peak, found.net, found.net_max, found.net_first};
  std::copy(std::begin(all), std::end(all), figures);
}

TL_EXPORT void tl_nodes_clear(int32_t group) {
  g_node_log.clear(group);
}

// How many events could not be added up.
TL_EXPORT int64_t tl_nodes_lost() {
  return g_node_log.lost();
}
