// The log as columns for Python.

#pragma once

#include "events.hpp"

#include <functional>
#include <numeric>
#include <vector>

namespace {

constexpr int8_t kStart = 0, kAlloc = 1, kFree = 2, kOutOfMemory = 5;

// Rows as in tensorlens.records.logs.events.
struct Rows {
  std::vector<int8_t> kind;
  std::vector<uint64_t> address;
  std::vector<int64_t> size, time;
  std::vector<int32_t> stack, context, birth, pair;
  std::vector<int32_t> owner;  // row of the block whose gradient it is

  void add(int8_t what, uint64_t where, int64_t bytes, int64_t when, int32_t at, int32_t in) {
    kind.push_back(what);
    address.push_back(where);
    size.push_back(bytes);
    time.push_back(when);
    stack.push_back(at);
    context.push_back(in);
    birth.push_back(kNoBirth);
    pair.push_back(-1);
    owner.push_back(-1);
  }
};

// One recording: the blocks at its beginning, and where it begins in the log.
struct Span {
  Highest highest;
  int64_t generation = 0;
  Rows past;  // blocks at its beginning
};

// The events of a recording so far.
struct Readout {
  Rows rows;
  Rows dropped;  // blocks resident at the highest dropped instant
  int64_t lost = 0;
  int64_t unlisted = 0;  // bytes of blocks left out for lack of memory; they share one row
};

// Idempotent.
void end_span(Span& span) {
  if (span.generation == g_log.generation() && g_log.end(&span.highest)) {
    g_recording.store(false, std::memory_order_relaxed);
    g_nodes.clear();
  }
}

// Recordings begin and end one at a time.
Span* begin_span(int64_t limit) {
  auto span = std::make_unique<Span>();
  const Holding holding(g_log.lock);
  const bool is_first = g_log.begin(&span->highest, limit);
  span->generation = g_log.generation();
  if (is_first) {
    g_epoch.fetch_add(1);
  }
  // from here on every allocation waits for the lock
  g_recording.store(true, std::memory_order_seq_cst);
  try {
    each_block([&](const Block& block) {
      if (is_first) {
        g_log.remember(block);
      }
      span->past.add(kStart, block.key, block.size, 0, kNoStack, -1);
      span->past.birth.back() = block.origin.birth.line;
    });
  } catch (...) {
    end_span(*span);
    throw;
  }
  return span.release();
}

struct OpenBlock {
  uintptr_t key;
  int32_t row;
};

// Adds events to rows, and pairs each free with its allocation.
class Pairing {
 public:
  explicit Pairing(Rows& rows) : rows_(rows) {
    open_.expect(rows.kind.size());
    for (size_t row = 0; row < rows.kind.size(); ++row) {
      open(static_cast<int32_t>(row));
    }
  }

  ~Pairing() {
    open_.release();
  }

  // Sets the owners of gradients among earlier blocks.
  void own(const Table<Past>& past) {
    past.each([&](const Past& block) {
      const OpenBlock* const owner = open_.find(block.owner);
      // a later block at the owner's address is another one
      if (owner != nullptr && rows_.time[owner->row] <= block.time) {
        own(block.key, block.owner);
      }
    });
  }

  void add(const Event& event) {
    if (event.is_gradient()) {
      own(event.address, event.owner());
      return;
    }
    const int8_t kind = event.is_failure() ? kOutOfMemory : event.is_free() ? kFree : kAlloc;
    const auto row = static_cast<int32_t>(rows_.kind.size());
    rows_.add(kind, event.address, event.bytes(), event.time, event.stack, event.context);
    OpenBlock block;
    if (kind == kAlloc) {
      open(row);
    } else if (kind == kFree && open_.take(event.address, &block)) {
      rows_.pair[row] = block.row;
      rows_.pair[block.row] = row;
    }
  }

 private:
  void own(uintptr_t gradient, uintptr_t of) {
    const OpenBlock* block = open_.find(gradient);
    const OpenBlock* owner = open_.find(of);
    if (block != nullptr && owner != nullptr) {
      rows_.owner[block->row] = owner->row;
    }
  }

  void open(int32_t row) {
    OpenBlock* block = open_.put(rows_.address[row]);
    if (block == nullptr) {
      throw std::bad_alloc();
    }
    block->row = row;
  }

  Rows& rows_;
  Table<OpenBlock> open_;
};

// Adds a row for each past block, and one at an address of no block for the bytes of `level` that
// none of them has, for lack of memory. Returns those bytes.
int64_t take_past(Rows& rows, const Table<Past>& past, int64_t level) {
  past.each([&](const Past& block) {
    rows.add(kStart, block.key, block.size, block.time, block.stack, block.context);
    rows.birth.back() = block.birth;
  });
  Pairing(rows).own(past);
  const int64_t bytes = std::accumulate(rows.size.begin(), rows.size.end(), level, std::minus<>());
  if (bytes > 0) {
    rows.add(kStart, 1, bytes, -1, kNoStack, -1);
  }
  return std::max<int64_t>(bytes, 0);
}

Readout* read_span(const Span& span) {
  auto read = std::make_unique<Readout>();
  const Holding holding(g_log.lock);
  const bool known = span.generation == g_log.generation();
  const int64_t begin = span.highest.begin;
  const int64_t from = known ? std::max(begin, g_log.first()) : begin;
  if (from == begin) {
    read->rows = span.past;
  } else {
    read->lost = span.highest.dropped;
    read->unlisted = std::max(
        take_past(read->rows, g_log.past(), g_log.level()),
        take_past(read->dropped, span.highest.blocks, span.highest.level));
  }
  Pairing pairing(read->rows);
  for (int64_t number = from; known && number < g_log.count(); ++number) {
    pairing.add(g_log.at(number));
  }
  return read.release();
}

}  // namespace
