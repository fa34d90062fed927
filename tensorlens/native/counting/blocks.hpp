// All blocks handed out: their requested sizes and births by address, and the sum of sizes.

#pragma once

#include "alloc_sites.hpp"
#include "columns.hpp"
#include "table.hpp"

#include <utility>
#include <vector>

namespace {

std::atomic<int64_t> g_allocated{0};
std::atomic<int64_t> g_peak{0};

// Raised at each step by those who follow loops; a block keeps the era that it was made in.
std::atomic<int32_t> g_era{0};

void raise_peak(int64_t level) {
  int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (peak < level &&
         !g_peak.compare_exchange_weak(peak, level, std::memory_order_relaxed)) {
  }
}

void count(int64_t bytes) {
  const int64_t level = g_allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes > 0) {
    raise_peak(level);
  }
}

// Origin of a block: source lines and, when graphs run, the node and the called function; -1 if
// unknown.
struct Origin {
  Birth birth;
  int32_t node = -1;
  int32_t function = -1;
};

// A deleter gets the address alone, and malloc_usable_size() rounds up: the size must be kept.
struct Block {
  uintptr_t key;
  int64_t size;
  Origin origin;
  int32_t era;  // when it was handed out
};

struct alignas(64) Shard {
  SpinLock lock;
  Table<Block> blocks;
};

// few enough to stay in a core's cache
constexpr int kShardBits = 4;
constexpr int kShards = 1 << kShardBits;
Shard g_shards[kShards];

int shard_of(uintptr_t address) {
  return static_cast<int>(hash_of(address) >> (64 - kShardBits));
}

void lock_blocks() {
  for (Shard& shard : g_shards) {
    shard.lock.lock();
  }
}

void unlock_blocks() {
  for (Shard& shard : g_shards) {
    shard.lock.unlock();
  }
}

struct AllLocked {
  AllLocked() {
    lock_blocks();
  }
  ~AllLocked() {
    unlock_blocks();
  }
};

// Visits all counted blocks, at one moment.
template <typename Visit>
void each_block(Visit visit) {
  const AllLocked locked;
  for (const Shard& shard : g_shards) {
    shard.blocks.each(visit);
  }
}

// `replaced` is set to the size of an earlier block at this address whose free was not seen.
bool count_in(const void* data, int64_t size, const Origin& origin, int64_t* replaced) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  Shard& shard = g_shards[shard_of(address)];
  int64_t stale = 0;
  {
    const Holding holding(shard.lock);
    Block* block = shard.blocks.put(address);
    if (block == nullptr) {
      return false;
    }
    stale = block->size;
    *block = Block{address, size, origin, g_era.load(std::memory_order_relaxed)};
  }
  if (stale != 0) {
    count(-stale);
  }
  *replaced = stale;
  count(size);
  return true;
}

// Returns the block's size, 0 for one from before the allocator was installed.
int64_t count_out(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  Shard& shard = g_shards[shard_of(address)];
  Block block{};
  bool known;
  {
    const Holding holding(shard.lock);
    known = shard.blocks.take(address, &block);
  }
  if (known) {
    count(-block.size);
  }
  return known ? block.size : 0;
}

Birth birth_of(uintptr_t address) {
  Shard& shard = g_shards[shard_of(address)];
  const Holding holding(shard.lock);
  const Block* block = shard.blocks.find(address);
  return block == nullptr ? Birth() : block->origin.birth;
}

// The size of the block at an address, -1 for none.
int64_t size_of(uintptr_t address) {
  Shard& shard = g_shards[shard_of(address)];
  const Holding holding(shard.lock);
  const Block* block = shard.blocks.find(address);
  return block == nullptr ? -1 : block->size;
}

// Lists address, size, birth, era, node and function of all blocks of the era `since` or later, at
// one moment.
Columns* list_living(int32_t since) {
  return listed<ColumnsOf<uint64_t, int64_t, int32_t, int32_t, int32_t, int32_t>>([&](auto& list) {
    each_block([&](const Block& block) {
      if (block.era >= since) {
        const Origin& origin = block.origin;
        list.add(
            block.key, block.size, origin.birth.line, block.era, origin.node, origin.function);
      }
    });
  });
}

// Lists each birth with its live blocks and bytes.
Columns* sum_by_birth() {
  return listed<ColumnsOf<int32_t, int64_t, int64_t>>([](auto& list) {
    // births are few and dense: a vector is faster than a table
    std::vector<std::pair<int64_t, int64_t>> totals;
    each_block([&](const Block& block) {
      const auto place = static_cast<size_t>(block.origin.birth.line + 1);
      if (place >= totals.size()) {
        totals.resize(place + 1);
      }
      ++totals[place].first;
      totals[place].second += block.size;
    });
    for (size_t place = 0; place < totals.size(); ++place) {
      const auto [blocks, bytes] = totals[place];
      if (blocks != 0) {
        list.add(static_cast<int32_t>(place) - 1, blocks, bytes);
      }
    }
  });
}

// Returns the bytes of all blocks, and sets the sizes of the blocks at the addresses, -1 for none,
// at one moment.
int64_t sizes_at(const uint64_t* addresses, int64_t length, int64_t* sizes) {
  const AllLocked locked;
  int64_t allocated = 0;
  for (const Shard& shard : g_shards) {
    shard.blocks.each([&](const Block& block) { allocated += block.size; });
  }
  for (int64_t index = 0; index < length; ++index) {
    const auto address = static_cast<uintptr_t>(addresses[index]);
    const Block* block = g_shards[shard_of(address)].blocks.find(address);
    sizes[index] = block == nullptr ? -1 : block->size;
  }
  return allocated;
}

}  // namespace
