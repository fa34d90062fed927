// Which node of autograd was made on which stack, and the names of operators and nodes.

#pragma once

#include "table.hpp"

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr int32_t kNoStack = -1;

// A node is known by the thread that made it and its sequence number there; an operator that may
// make nodes says which number comes next.
class Nodes {
 public:
  static constexpr size_t kSmallest = 1 << 8, kLargest = 1 << 20;
  // of one operator, so many nodes at most
  static constexpr int kMostAtOnce = 64;
  // a program that starts a thread for every request must not eat the host
  static constexpr size_t kMostThreads = 256, kMostPlaces = 1 << 22;

  void made(uint64_t thread, int64_t number, int32_t stack) {
    if (stack == kNoStack) {
      return;
    }
    const Holding holding(lock);
    std::vector<Made>& ring = ring_of(thread);
    Made* place = &ring[number & (ring.size() - 1)];
    while (place->stack != kNoStack && place->number != number && ring.size() < kLargest &&
           places_ + ring.size() <= kMostPlaces) {
      enlarge(ring);
      place = &ring[number & (ring.size() - 1)];
    }
    *place = Made{number, stack};
  }

  int32_t find(uint64_t thread, int64_t number) {
    const Holding holding(lock);
    const auto found = threads_.find(thread);
    if (number < 0 || found == threads_.end()) {
      return kNoStack;
    }
    const std::vector<Made>& ring = found->second.ring;
    for (int64_t earlier = number; earlier >= 0 && number - earlier < kMostAtOnce; --earlier) {
      const Made& made = ring[earlier & (ring.size() - 1)];
      if (made.stack != kNoStack && made.number == earlier) {
        return made.stack;
      }
    }
    return kNoStack;
  }

  void clear() {
    const Holding holding(lock);
    last_ = nullptr;
    threads_.clear();
    places_ = 0;
  }

  SpinLock lock;

 private:
  struct Made {
    int64_t number = -1;
    int32_t stack = kNoStack;
  };
  struct OfThread {
    std::vector<Made> ring;
    int64_t used = 0;
  };

  std::vector<Made>& ring_of(uint64_t thread) {
    if (last_ == nullptr || last_thread_ != thread) {
      if (threads_.size() >= kMostThreads && threads_.count(thread) == 0) {
        forget_one();
      }
      last_ = &threads_[thread];
      last_thread_ = thread;
      last_->used = ++uses_;
      if (last_->ring.empty()) {
        last_->ring.resize(kSmallest);
        places_ += kSmallest;
      }
    }
    return last_->ring;
  }

  void enlarge(std::vector<Made>& ring) {
    std::vector<Made> larger(2 * ring.size());
    for (const Made& made : ring) {
      if (made.stack != kNoStack) {
        larger[made.number & (larger.size() - 1)] = made;
      }
    }
    places_ += ring.size();
    ring.swap(larger);
  }

  void forget_one() {
    const auto oldest = std::min_element(
        threads_.begin(), threads_.end(),
        [](const auto& one, const auto& other) { return one.second.used < other.second.used; });
    places_ -= oldest->second.ring.size();
    threads_.erase(oldest);
    last_ = nullptr;
  }

  std::unordered_map<uint64_t, OfThread> threads_;
  OfThread* last_ = nullptr;
  uint64_t last_thread_ = 0;
  int64_t uses_ = 0;
  size_t places_ = 0;
};

Nodes& g_nodes = *new Nodes;

// Names of operators and nodes. Their texts come and go, so they are kept by content.
class OpNames {
 public:
  int32_t number(const char* name) {
    Cached& cached = cache_[(reinterpret_cast<uintptr_t>(name) >> 3) & (kCache - 1)];
    const Holding holding(lock);
    if (cached.name != name || std::strcmp(cached.text, name) != 0) {
      const int32_t found = add(std::string(name));
      cached = Cached{name, texts_[found]->c_str(), found};
    }
    return cached.number;
  }

  int32_t number(const char* name, size_t length) {
    const Holding holding(lock);
    return add(std::string(name, length));
  }

  const std::string* text(int32_t number) {
    const Holding holding(lock);
    return number >= 0 && static_cast<size_t>(number) < texts_.size() ? texts_[number] : nullptr;
  }

  int64_t count() const {
    return static_cast<int64_t>(texts_.size());
  }

  SpinLock lock;

 private:
  int32_t add(std::string name) {
    const auto [entry, fresh] =
        numbers_.emplace(std::move(name), static_cast<int32_t>(texts_.size()));
    if (fresh) {
      texts_.push_back(&entry->first);
    }
    return entry->second;
  }

  static constexpr size_t kCache = 1024;
  struct Cached {
    const char* name = nullptr;
    const char* text = nullptr;
    int32_t number = 0;
  };
  Cached cache_[kCache];
  std::unordered_map<std::string, int32_t> numbers_;
  std::vector<const std::string*> texts_;
};

OpNames& g_op_names = *new OpNames;

}  // namespace
