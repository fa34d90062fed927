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
#include <cstring>
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

// Whoever calls holds the lock.
struct NodeLog {
  // 6 MiB; a call with more is added up as it goes, so far as its nodes are known
  static constexpr size_t kMostEntries = 1 << 18;
  // a program that traces anew all the time must not eat the host
  static constexpr size_t kMostKeys = 1 << 16;

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

  SpinLock lock;
  std::atomic<int64_t> calls{0};
  std::unordered_map<uint64_t, int32_t> numbers;
  std::vector<Key> keys;
  std::vector<int32_t> fresh;
  int64_t waiting = 0;  // nodes that were met and are in no group yet
  std::vector<Entry> entries;
  std::unordered_map<uintptr_t, Open> open;
  std::vector<Group> groups;
  std::vector<NowInGroup> running;
  std::vector<int32_t> touched;
  int64_t lost = 0;  // events that could not be added up

  bool is_on() const {
    return calls.load(std::memory_order_relaxed) > 0;
  }

  // The number of what runs in a call, which is fresh where it is in no group; -1 where there are
  // too many.
  int32_t key_of(int32_t function, int32_t node) {
    const uint64_t name = static_cast<uint64_t>(static_cast<uint32_t>(function)) << 32 |
        static_cast<uint32_t>(node);
    auto known = numbers.find(name);
    if (known == numbers.end()) {
      if (keys.size() >= kMostKeys) {
        return -1;
      }
      keys.push_back(Key{function, node, false, false, {}});
      known = numbers.emplace(name, static_cast<int32_t>(keys.size()) - 1).first;
    }
    Key& key = keys[known->second];
    if (!key.placed && !key.waits) {
      fresh.push_back(known->second);
      key.waits = true;
      ++waiting;
    }
    return known->second;
  }

  void add(const Entry& entry) {
    if (entries.size() >= kMostEntries) {
      add_up();
    }
    entries.push_back(entry);
  }

  void add_up() {
    for (const Entry& entry : entries) {
      if (entry.size == 0) {
        const auto found = open.find(entry.address);
        if (found != open.end()) {
          change(found->second.key, -found->second.size);
          open.erase(found);
        }
        continue;
      }
      if (!keys[entry.key].placed) {
        ++lost;
        continue;
      }
      open[entry.address] = Open{entry.size, entry.key};
      change(entry.key, entry.size);
    }
    entries.clear();
  }

  void change(int32_t key, int64_t size) {
    for (const int32_t number : keys[key].groups) {
      NowInGroup& group = running[number];
      if (!group.touched) {
        group.touched = true;
        touched.push_back(number);
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
    for (const int32_t number : touched) {
      Group& all = groups[number];
      const NowInGroup& now = running[number];
      all.net_first = all.hits == 0 ? now.resident : all.net_first;
      all.net_max = all.hits == 0 ? now.resident : std::max(all.net_max, now.resident);
      all.net += now.resident;
      all.allocated = std::max(all.allocated, now.allocated);
      all.peak = std::max(all.peak, now.peak);
      ++all.hits;
      running[number] = NowInGroup();
    }
    touched.clear();
    open.clear();
    if (keys.size() >= kMostKeys && waiting == 0) {
      keys.clear();
      numbers.clear();
    }
  }
};

NodeLog& g_node_log = *new NodeLog;

// `node` is the number of the name of what runs, -1 for none.
void log_node(const void* block, int64_t size, int32_t node) {
  Call call{0, 0, -1, Captured{kNoStack, Birth()}};
  g_calls.here(&call);
  const Holding holding(g_node_log.lock);
  try {
    const int32_t key = g_node_log.key_of(call.function, node);
    if (key >= 0) {
      g_node_log.add(NodeLog::Entry{reinterpret_cast<uintptr_t>(block), size, key});
      return;
    }
  } catch (const std::bad_alloc&) {
    // it is lost as well
  }
  ++g_node_log.lost;
}

void log_free(const void* block) {
  const Holding holding(g_node_log.lock);
  try {
    g_node_log.add(NodeLog::Entry{reinterpret_cast<uintptr_t>(block), 0, -1});
  } catch (const std::bad_alloc&) {
    ++g_node_log.lost;
  }
}

void follow_forks() {
  pthread_atfork(
      [] { g_node_log.lock.lock(); }, [] { g_node_log.lock.unlock(); },
      [] {
        g_node_log.calls.store(0);
        g_node_log.entries.clear();
        g_node_log.open.clear();
        for (const int32_t group : g_node_log.touched) {
          g_node_log.running[group] = NowInGroup();
        }
        g_node_log.touched.clear();
        g_node_log.lock.unlock();
      });
}

}  // namespace

// The end gives how many nodes are in no group yet; if none, all is added up.
TL_EXPORT PyObject* tl_nodes_begin() {
  {
    const Holding holding(g_node_log.lock);
    g_node_log.calls.fetch_add(1, std::memory_order_relaxed);
  }
  return begun(0, [](int64_t) {
    const Holding holding(g_node_log.lock);
    // a child forked during a call has a count of 0 already
    const int64_t left = std::max<int64_t>(0, g_node_log.calls.load() - 1);
    g_node_log.calls.store(left, std::memory_order_relaxed);
    if (g_node_log.waiting == 0) {
      g_node_log.settle();
    }
    return g_node_log.waiting;
  });
}

// Takes the nodes that are in no group yet: key, function and node of each.
TL_EXPORT int64_t tl_nodes_fresh(int32_t* found, int64_t most) {
  const Holding holding(g_node_log.lock);
  int64_t count = 0;
  for (; count < most && !g_node_log.fresh.empty(); ++count) {
    const int32_t key = g_node_log.fresh.back();
    g_node_log.fresh.pop_back();
    *found++ = key;
    *found++ = g_node_log.keys[key].function;
    *found++ = g_node_log.keys[key].node;
  }
  return count;
}

TL_EXPORT void tl_nodes_place(int32_t number, const int32_t* groups, int64_t count) {
  const Holding holding(g_node_log.lock);
  if (static_cast<size_t>(number) < g_node_log.keys.size()) {
    NodeLog::Key& key = g_node_log.keys[number];
    key.groups.assign(groups, groups + count);
    key.placed = true;
    g_node_log.waiting -= key.waits;
    key.waits = false;
  }
}

// Has all nodes put into groups anew.
TL_EXPORT void tl_nodes_forget_places() {
  const Holding holding(g_node_log.lock);
  const int64_t lost = g_node_log.lost;
  g_node_log.add_up();
  g_node_log.lost = lost;  // of groups that nobody asks for any more, or not yet
  g_node_log.fresh.clear();
  g_node_log.waiting = 0;
  for (NodeLog::Key& key : g_node_log.keys) {
    key.placed = key.waits = false;
  }
}

TL_EXPORT void tl_nodes_settle() {
  const Holding holding(g_node_log.lock);
  g_node_log.settle();
}

TL_EXPORT int32_t tl_nodes_group() {
  const Holding holding(g_node_log.lock);
  try {
    g_node_log.running.emplace_back();
    g_node_log.groups.emplace_back();
    return static_cast<int32_t>(g_node_log.groups.size()) - 1;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}

// Gives hits, allocated, peak, net, net_max and net_first.
TL_EXPORT void tl_nodes_look(int32_t group, int64_t* figures) {
  const Holding holding(g_node_log.lock);
  std::memcpy(figures, &g_node_log.groups[group], sizeof(Group));
}

TL_EXPORT void tl_nodes_clear(int32_t group) {
  const Holding holding(g_node_log.lock);
  g_node_log.groups[group] = Group();
}

TL_EXPORT int64_t tl_nodes_lost() {
  const Holding holding(g_node_log.lock);
  return g_node_log.lost;
}
