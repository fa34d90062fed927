// The stacks on which autograd nodes were made, and the names of operators and nodes.

#pragma once

#include "table.hpp"

#include <sys/mman.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr int32_t kNoStack = -1;

// Stacks of nodes, by the thread that made a node and its sequence number there. An operator that
// may make nodes states the next number. About the latest million are kept, in a ring: a later node
// replaces one that has the same slot.
class Nodes {
 public:
  // nodes that one operator makes
  static constexpr int kMaxPerOperator = 64;
  static constexpr int kBits = 20, kPartBits = 14;

  void add(uint64_t thread, int64_t number, int32_t stack) {
    if (stack == kNoStack) {
      return;
    }
    const Holding holding(lock);
    const size_t slot = slot_of(thread, number);
    Made*& part = parts_[slot >> kPartBits];
    if (part == nullptr) {
      void* const taken =
          mmap(nullptr, kPartBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (taken == MAP_FAILED) {
        return;
      }
      part = static_cast<Made*>(taken);
    }
    part[slot & kPartMask] = Made{thread, number, stack + 1};
  }

  int32_t find(uint64_t thread, int64_t number) {
    const Holding holding(lock);
    for (int64_t earlier = number; earlier >= 0 && number - earlier < kMaxPerOperator; --earlier) {
      const size_t slot = slot_of(thread, earlier);
      const Made* part = parts_[slot >> kPartBits];
      if (part == nullptr || part[slot & kPartMask].stack == 0) {
        continue;
      }
      const Made& made = part[slot & kPartMask];
      // the slot was used again: the operator looked for may have been here
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
    for (Made*& part : parts_) {
      if (part != nullptr) {
        munmap(part, kPartBytes);
        part = nullptr;
      }
    }
  }

  SpinLock lock;

 private:
  struct Made {
    uint64_t thread;
    int64_t number;
    int32_t stack;  // 1 + its number; 0: an empty slot
  };

  static size_t slot_of(uint64_t thread, int64_t number) {
    // consecutive numbers of a thread have consecutive slots
    const uint64_t begin = (thread * 0x9E3779B97F4A7C15ull) >> (64 - kBits);
    return (begin + static_cast<uint64_t>(number)) & ((1u << kBits) - 1);
  }

  static constexpr size_t kPartMask = (size_t{1} << kPartBits) - 1;
  static constexpr size_t kPartBytes = (size_t{1} << kPartBits) * sizeof(Made);
  // mapped on first use, and unmapped: malloc might keep the memory
  Made* parts_[size_t{1} << (kBits - kPartBits)] = {};
};

Nodes& g_nodes = *new Nodes;

// Names of operators and nodes, copied because the originals do not last.
class OpNames : public Texts<std::string> {
 public:
  using Texts::number;

  // A name at an address seen before with the same text is found without hashing it.
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
