// Which node of autograd was made on which stack, and the names of operators and nodes.

#pragma once

#include "table.hpp"

#include <sys/mman.h>

#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr int32_t kNoStack = -1;

// A node is known by the thread that made it and its sequence number there; an operator that may
// make nodes says which number comes next. The latest million are kept: nodes of two threads may
// share a place, which the later one has then.
class Nodes {
 public:
  // of one operator, so many nodes at most
  static constexpr int kMostAtOnce = 64;
  static constexpr int kBits = 20, kPartBits = 14;

  void made(uint64_t thread, int64_t number, int32_t stack) {
    if (stack == kNoStack) {
      return;
    }
    const Holding holding(lock);
    const size_t place = place_of(thread, number);
    Made*& part = parts_[place >> kPartBits];
    if (part == nullptr) {
      void* const taken =
          mmap(nullptr, kPartBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (taken == MAP_FAILED) {
        return;
      }
      part = static_cast<Made*>(taken);
    }
    part[place & kInPart] = Made{thread, number, stack + 1};
  }

  int32_t find(uint64_t thread, int64_t number) {
    const Holding holding(lock);
    for (int64_t earlier = number; earlier >= 0 && number - earlier < kMostAtOnce; --earlier) {
      const size_t place = place_of(thread, earlier);
      const Made* part = parts_[place >> kPartBits];
      if (part == nullptr || part[place & kInPart].stack == 0) {
        continue;
      }
      const Made& made = part[place & kInPart];
      // whose place a later one has may be what is looked for: the operator before it made others
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
    int32_t stack;  // 1 + its number, 0 where there is none
  };

  static size_t place_of(uint64_t thread, int64_t number) {
    // numbers of one thread follow each other
    const uint64_t begin = (thread * 0x9E3779B97F4A7C15ull) >> (64 - kBits);
    return (begin + static_cast<uint64_t>(number)) & ((1u << kBits) - 1);
  }

  static constexpr size_t kInPart = (size_t{1} << kPartBits) - 1;
  static constexpr size_t kPartBytes = (size_t{1} << kPartBits) * sizeof(Made);
  // taken as nodes come to lie in them, and given back whole: malloc would keep them
  Made* parts_[size_t{1} << (kBits - kPartBits)] = {};
};

Nodes& g_nodes = *new Nodes;

// Names of operators and nodes. Their texts come and go, so they are kept by content.
class OpNames : public Texts<std::string> {
 public:
  using Texts::number;

  // Of a text at the same place it was found before.
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
