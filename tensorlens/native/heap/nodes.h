// Objects that a search meets, the references between them, and its result.

#pragma once

#include "layout.h"

#include <vector>

namespace {

struct Node {
  uintptr_t address = 0;
  int32_t into = -1, out = -1;  // lists of edges
  int32_t best = -1;            // the edge from the holder in its name
  int32_t row = -1;
  int16_t distance = -1;        // references from the root of its name
  int16_t wanted = -1;          // the pass that searched its holders
  Origin origin = kVariable;
  bool resolved = false, marked = false;
  uint8_t holders = 0;          // counted in a search for all references
};
static_assert(sizeof(Node) == 32, "a search reads many nodes");

// Nodes by address, a hash table with open addressing and linear probing. Slots are small: a
// search spends most of its time waiting for them.
class Nodes : public std::vector<Node> {
 public:
  explicit Nodes(size_t expected) {
    reserve(expected);
    resize_slots(expected);
  }

  int32_t find(const void* object) const {
    const auto address = reinterpret_cast<uintptr_t>(object);
    const uint32_t tag = tag_of(address);
    for (size_t index = slot_hash(address) & mask_; slots_[index].number >= 0;
         index = (index + 1) & mask_) {
      const Slot& slot = slots_[index];
      if (slot.tag == tag && (*this)[slot.number].address == address) {
        return slot.number;
      }
    }
    return -1;
  }

  void prefetch(const void* object) const {
    __builtin_prefetch(&slots_[slot_hash(reinterpret_cast<uintptr_t>(object)) & mask_]);
  }

  int32_t add(const void* object) {
    const int32_t number = find(object);
    return number < 0 ? add_new(object) : number;
  }

  // Adds an object that find() does not know.
  int32_t add_new(const void* object) {
    const auto number = static_cast<int32_t>(size());
    emplace_back();
    back().address = reinterpret_cast<uintptr_t>(object);
    if (2 * size() > mask_) {
      resize_slots(2 * size());
    } else {
      place(number);
    }
    return number;
  }

 private:
  struct Slot {
    uint32_t tag = 0;
    int32_t number = -1;
  };

  // The lowest bits of the tag also choose the slot.
  static uint32_t tag_of(uintptr_t address) { return static_cast<uint32_t>(address >> 4); }

  void place(int32_t number) {
    const uintptr_t address = (*this)[number].address;
    size_t index = slot_hash(address) & mask_;
    while (slots_[index].number >= 0) {
      index = (index + 1) & mask_;
    }
    slots_[index] = Slot{tag_of(address), number};
  }

  void resize_slots(size_t expected) {
    int bits = 6;
    while ((size_t{1} << bits) < 2 * expected + 2) {
      ++bits;
    }
    slots_.assign(size_t{1} << bits, Slot{});
    mask_ = slots_.size() - 1;
    for (size_t number = 0; number < size(); ++number) {
      place(static_cast<int32_t>(number));
    }
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

void* to_pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Edge {
  int32_t holder, child;
  int32_t next_into, next_out;
  int64_t value;
  int32_t references;  // of the holder to the child
  How how;
};

struct Rows {
  std::vector<int32_t> holder;
  std::vector<int8_t> how;
  std::vector<int64_t> value;
  std::vector<uint64_t> address;
  std::vector<int8_t> written;  // for each key
  std::vector<PyObject*> keys;
  std::vector<int32_t> targets;
};

}  // namespace
