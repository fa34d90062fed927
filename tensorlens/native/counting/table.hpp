// A lock held for nanoseconds, and a hash table without an allocation per entry.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sched.h>

namespace {

class SpinLock {
 public:
  void lock() {
    for (int spins = 0; busy_.exchange(true, std::memory_order_acquire); ++spins) {
      if (spins >= 64) {
        sched_yield();
      }
    }
  }

  void unlock() {
    busy_.store(false, std::memory_order_release);
  }

 private:
  std::atomic<bool> busy_{false};
};

using Holding = std::lock_guard<SpinLock>;

inline uint64_t hash_of(uintptr_t key) {
  // malloc aligns, so the low bits are empty; the high bits of the product vary most
  return (static_cast<uint64_t>(key) >> 4) * 0x9E3779B97F4A7C15ull;
}

// Open addressing with linear probing. An Entry is plain data with a member `uintptr_t key`, 0 in
// free entries. Users that share a table lock it.
template <typename Entry>
class Table {
 public:
  // Returns the key's entry, zero except for the key if it is new; null if there is no memory.
  Entry* put(uintptr_t key) {
    // A search ends at a free entry, so without memory to grow some must stay free.
    if (!is_room(used_ + 1, capacity_) && !resize(capacity_ ? 2 * capacity_ : kSmallest) &&
        16 * (used_ + 1) > 15 * capacity_) {
      return nullptr;
    }
    Entry* entry = place(key);
    if (entry->key != key) {
      entry->key = key;
      ++used_;
    }
    return entry;
  }

  Entry* find(uintptr_t key) {
    if (used_ == 0 || key == 0) {
      return nullptr;
    }
    Entry* entry = place(key);
    return entry->key == key ? entry : nullptr;
  }

  bool take(uintptr_t key, Entry* taken) {
    Entry* entry = find(key);
    if (entry == nullptr) {
      return false;
    }
    *taken = *entry;
    close_gap(static_cast<size_t>(entry - entries_));
    --used_;
    if (capacity_ > kSmallest && 16 * used_ < capacity_) {
      resize(std::max(kSmallest, capacity_ / 4));
    }
    return true;
  }

  // Reserves memory for this many entries, if there is some.
  void expect(size_t entries) {
    size_t capacity = std::max(capacity_, kSmallest);
    while (!is_room(entries, capacity)) {
      capacity *= 2;
    }
    if (capacity != capacity_) {
      resize(capacity);
    }
  }

  template <typename Visit>
  void each(Visit visit) const {
    for (size_t index = 0; index < capacity_; ++index) {
      if (entries_[index].key != 0) {
        visit(entries_[index]);
      }
    }
  }

  // Copies the table; the caller releases the copy, which is empty if there is no memory.
  void copy_to(Table* copy) const {
    copy->release();
    copy->entries_ = static_cast<Entry*>(std::malloc(capacity_ * sizeof(Entry)));
    if (copy->entries_ != nullptr) {
      std::copy_n(entries_, capacity_, copy->entries_);
      copy->capacity_ = capacity_;
      copy->used_ = used_;
    }
  }

  void release() {
    std::free(entries_);
    *this = Table();
  }

  size_t used() const {
    return used_;
  }

 private:
  static constexpr size_t kSmallest = 64;

  // Three quarters full at most: beyond that, linear probing gets slow.
  static bool is_room(size_t entries, size_t capacity) {
    return 4 * entries <= 3 * capacity;
  }

  size_t home(uintptr_t key) const {
    return static_cast<size_t>(hash_of(key) >> 16) & (capacity_ - 1);
  }

  Entry* place(uintptr_t key) {
    size_t index = home(key);
    while (entries_[index].key != 0 && entries_[index].key != key) {
      index = (index + 1) & (capacity_ - 1);
    }
    return &entries_[index];
  }

  // Moves later entries of the run back, so that lookups need no tombstones.
  void close_gap(size_t gap) {
    const size_t mask = capacity_ - 1;
    for (size_t next = (gap + 1) & mask; entries_[next].key != 0; next = (next + 1) & mask) {
      const size_t wanted = home(entries_[next].key);
      if (((next - wanted) & mask) >= ((next - gap) & mask)) {
        entries_[gap] = entries_[next];
        gap = next;
      }
    }
    entries_[gap] = Entry{};
  }

  bool resize(size_t capacity) {
    auto* fresh = static_cast<Entry*>(std::calloc(capacity, sizeof(Entry)));
    if (fresh == nullptr) {
      return false;
    }
    Entry* old = entries_;
    const size_t count = capacity_;
    entries_ = fresh;
    capacity_ = capacity;
    for (size_t index = 0; index < count; ++index) {
      if (old[index].key != 0) {
        *place(old[index].key) = old[index];
      }
    }
    std::free(old);
    return true;
  }

  Entry* entries_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

// Numbered texts, each stored once.
template <typename Text>
class Texts {
 public:
  int32_t number(Text text) {
    const Holding holding(lock);
    return add(std::move(text));
  }

  // The text's address never changes.
  const Text* text(int32_t number) {
    const Holding holding(lock);
    return number >= 0 && static_cast<size_t>(number) < texts_.size() ? texts_[number] : nullptr;
  }

  SpinLock lock;

 protected:
  // The lock is held.
  int32_t add(Text text) {
    const auto [entry, fresh] =
        numbers_.emplace(std::move(text), static_cast<int32_t>(texts_.size()));
    if (fresh) {
      texts_.push_back(&entry->first);
    }
    return entry->second;
  }

  std::vector<const Text*> texts_;

 private:
  std::unordered_map<Text, int32_t> numbers_;
};

// Numbered values, each stored once. A Value is plain data without padding. Users lock it.
template <typename Value>
class Numbered {
 public:
  // Returns the value's number; -1 if it is new and there are `max_values` already.
  int32_t number(const Value& value, size_t max_values) {
    if (2 * (values_.size() + 1) > slots_.size()) {
      grow();
    }
    int32_t& slot = slots_[place(value)];
    if (slot < 0 && values_.size() < max_values) {
      values_.push_back(value);
      slot = static_cast<int32_t>(values_.size() - 1);
    }
    return slot;
  }

  // Null for an unknown number.
  const Value* find(int32_t number) const {
    return number >= 0 && static_cast<size_t>(number) < values_.size() ? &values_[number] : nullptr;
  }

  SpinLock lock;

 private:
  size_t place(const Value& value) const {
    uint32_t words[sizeof(Value) / sizeof(uint32_t)];
    std::memcpy(words, &value, sizeof value);
    uint64_t hash = 0;
    for (const uint32_t word : words) {
      hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
      hash ^= hash >> 29;
    }
    size_t index = hash & (slots_.size() - 1);
    while (slots_[index] >= 0 && std::memcmp(&values_[slots_[index]], &value, sizeof value) != 0) {
      index = (index + 1) & (slots_.size() - 1);
    }
    return index;
  }

  void grow() {
    std::vector<int32_t> larger(std::max<size_t>(1024, 2 * slots_.size()), -1);
    slots_.swap(larger);
    for (size_t number = 0; number < values_.size(); ++number) {
      slots_[place(values_[number])] = static_cast<int32_t>(number);
    }
  }

  std::vector<int32_t> slots_;
  std::vector<Value> values_;
};

}  // namespace
