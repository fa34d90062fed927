// The stacks on which autograd nodes were made, and the names of operators and nodes.

#pragma once

#include "table.hpp"

#include <sys/mman.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr int32_t kNoStack = -1;

// A node is identified by its thread and its sequence number there; an operator that may make nodes
// reports the next number. The latest million are kept. Nodes of two threads may share a slot; the
// later one replaces the earlier.
class Nodes {
 public:
  static constexpr int kMaxNodesOfOperator = 64;
  static constexpr int kBits = 20;

  void made(uint64_t thread, int64_t number, int32_t stack) {
    if (stack == kNoStack) {
      return;
    }
    const Holding holding(lock);
    if (slots_ == nullptr) {
      void* const mapped =
          mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (mapped == MAP_FAILED) {
        return;
      }
      slots_ = static_cast<Made*>(mapped);
    }
    slots_[slot_of(thread, number)] = Made{thread, number, stack + 1};
  }

  int32_t find(uint64_t thread, int64_t number) {
    const Holding holding(lock);
    if (slots_ == nullptr) {
      return kNoStack;
    }
    for (int64_t earlier = number; earlier >= 0 && number - earlier < kMaxNodesOfOperator; --earlier) {
      const Made& made = slots_[slot_of(thread, earlier)];
      if (made.stack == 0) {
        continue;
      }
      // the node looked for may have been replaced: nodes before it are of another operator
      if (made.thread != thread || made.number > earlier) {
        return kNoStack;
      }
      if (made.number == earlier) {
        return made.stack - 1;
      }
    }
    return kNoStack;
  }

  void clear() {
    const Holding holding(lock);
    if (slots_ != nullptr) {
      munmap(slots_, kBytes);
      slots_ = nullptr;
    }
  }

  SpinLock lock;

 private:
  struct Made {
    uint64_t thread;
    int64_t number;
    int32_t stack;  // 1 + its number; 0: empty slot
  };

  static size_t slot_of(uint64_t thread, int64_t number) {
    // numbers of one thread follow each other
    const uint64_t begin = (thread * 0x9E3779B97F4A7C15ull) >> (64 - kBits);
    return (begin + static_cast<uint64_t>(number)) & ((1u << kBits) - 1);
  }

  static constexpr size_t kBytes = (size_t{1} << kBits) * sizeof(Made);
  // 24 MiB, whose pages take memory when written; unmapped as a whole: malloc would keep them
  Made* slots_ = nullptr;
};

Nodes& g_nodes = *new Nodes;

// Names of operators and nodes, kept by content: their texts are freed elsewhere.
class OpNames : public Texts<std::string> {
 public:
  using Texts::number;

  // Cached by the address of the text.
  int32_t number(const char* name) {
    Cached& cached = cache_[(reinterpret_cast<uintptr_t>(name) >> 3) & (kCache - 1)];
    const Holding holding(lock);
    if (cached.name != name || std::strcmp(cached.text, name) != 0) {
      const int32_t found = add(name);
      cached = Cached{name, texts_[found]->c_str(), found};
    }
    return cached.number;
  }

 private:
  static constexpr size_t kCache = 1024;
  struct Cached {
    const char* name = nullptr;
    const char* text = nullptr;
    int32_t number = 0;
  };
  Cached cache_[kCache];
};

OpNames& g_op_names = *new OpNames;

}  // namespace
