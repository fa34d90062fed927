// Log of every allocation and free while something records, in the order of the counter.
//
// Memory is bounded: beyond a limit the oldest events are folded into the set of blocks resident
// after them, and each recording keeps the highest instant among its folded events.

#pragma once

#include "blocks.hpp"

#include <memory>
#include <new>
#include <vector>

namespace {

// An allocation, a free, a failed request, or a note that a block is a gradient, in 32 bytes. Made
// by the static functions below.
struct Event {
  uint64_t address;  // 0: no block
  int64_t size;      // negative for a free; 0: a note
  int64_t time;      // of a note: the address of the gradient's owner
  int32_t stack;
  int32_t context;

  // The time is set when the event is added to the log.
  static Event allocation(uintptr_t address, int64_t size, int32_t stack, int32_t context) {
    return Event{address, size, 0, stack, context};
  }
  static Event failure(int64_t size, int32_t stack, int32_t context) {
    return Event{0, size, 0, stack, context};
  }
  static Event gradient(uintptr_t address, uintptr_t of) {
    return Event{address, 0, static_cast<int64_t>(of), -1, -1};
  }
  // A free with the stack and context of this event.
  Event as_free(int64_t bytes) const {
    return Event{address, -bytes, time, stack, context};
  }

  bool moves_bytes() const {
    return address != 0 && size != 0;
  }
  bool is_free() const {
    return address != 0 && size < 0;
  }
  bool is_failure() const {
    return address == 0 && size != 0;
  }
  bool is_gradient() const {
    return size == 0;
  }
  int64_t bytes() const {
    return size < 0 ? -size : size;
  }
  uintptr_t owner() const {
    return static_cast<uintptr_t>(time);
  }
};

// A block resident before the first event of the log.
struct Past {
  uintptr_t key;
  int64_t size;
  int64_t time;   // -1: allocated before any recording
  uint64_t owner;  // address of the block whose gradient it is
  int32_t stack, context, birth;
};

// The highest instant of a recording among its folded events.
struct Highest {
  int64_t begin = 0;    // number of the recording's first event
  int64_t dropped = 0;  // number of folded events, without notes
  int64_t level = -1;   // bytes; -1: no event is folded
  int64_t instant = -1;  // during fold(): index in the chunk
  Table<Past> blocks;

  ~Highest() {
    blocks.release();
  }
};

// Callers hold the lock.
class Log {
 public:
  static constexpr int64_t kChunk = 1 << 12, kMostChunks = 1 << 20;

  struct Reader {
    Highest* highest;
    int64_t limit;
  };

  // Returns whether this is the first reader, which then calls remember() for each block. At least
  // `limit` events are kept, notes included, if there is memory for them.
  bool begin(Highest* highest, int64_t limit) {
    // appending must allocate nothing but chunks
    chunks_.reserve(static_cast<size_t>(std::min(limit / kChunk + 3, kMostChunks)));
    if (chunks_.empty()) {
      chunks_.push_back(make_chunk());
      if (chunks_.back() == nullptr) {
        chunks_.clear();
        throw std::bad_alloc();
      }
      first_ = count_;
    }
    highest->begin = count_;
    readers_.push_back(Reader{highest, limit});
    return readers_.size() == 1;
  }

  // Returns whether no reader is left.
  bool end(const Highest* highest) {
    readers_.erase(
        std::remove_if(
            readers_.begin(), readers_.end(),
            [&](const Reader& reader) { return reader.highest == highest; }),
        readers_.end());
    if (readers_.empty()) {
      forget();
    }
    return readers_.empty();
  }

  // Called in a forked child, which drops the recordings of its parent; see `generation`.
  void abandon() {
    readers_.clear();
    forget();
    ++generation_;
  }

  void append(const Event& event) noexcept {
    const int64_t index = (count_ - first_) & (kChunk - 1);
    if (index == 0 && count_ - first_ == static_cast<int64_t>(chunks_.size()) * kChunk) {
      make_room();
    }
    chunks_.back()[index] = event;
    ++count_;
  }

  bool is_on() const {
    return !readers_.empty();
  }
  int64_t count() const {
    return count_;
  }
  int64_t first() const {
    return first_;
  }
  // Recordings of another generation have ended.
  int64_t generation() const {
    return generation_;
  }

  // Bytes resident at the first event that is kept.
  int64_t level() const {
    return level_;
  }

  const Event& at(int64_t number) const {
    const int64_t index = number - first_;
    return chunks_[index / kChunk][index & (kChunk - 1)];
  }

  // Adds a block that is resident when the log begins.
  void remember(const Block& block) {
    Past* past = past_.put(block.key);
    if (past == nullptr) {
      throw std::bad_alloc();
    }
    *past = Past{block.key, block.size, -1, 0, -1, -1, block.origin.birth.line};
    level_ += block.size;
  }

  const Table<Past>& past() const {
    return past_;
  }

  SpinLock lock;

 private:
  using Chunk = std::unique_ptr<Event[]>;

  static Chunk make_chunk() {
    return Chunk(new (std::nothrow) Event[kChunk]);
  }

  int64_t limit() const {
    int64_t most = 0;
    for (const Reader& reader : readers_) {
      most = std::max(most, reader.limit);
    }
    return most;
  }

  // Without memory for another chunk, the oldest is reused.
  void make_room() noexcept {
    const int64_t most = limit();
    Chunk room;
    while (count_ - first_ - kChunk >= most && chunks_.size() > 1) {
      room = fold();
    }
    if (room == nullptr && chunks_.size() < chunks_.capacity()) {
      room = make_chunk();
    }
    if (room == nullptr) {
      room = fold();
    }
    chunks_.push_back(std::move(room));
  }

  // Folds the oldest chunk into the past blocks; returns its memory.
  Chunk fold() {
    const Event* const events = chunks_.front().get();
    for (const Reader& reader : readers_) {
      find_highest(events, *reader.highest);
    }
    for (int64_t index = 0; index <= kChunk; ++index) {
      for (const Reader& reader : readers_) {
        if (reader.highest->instant == index) {
          past_.copy_to(&reader.highest->blocks);
        }
      }
      if (index < kChunk) {
        settle(events[index]);
      }
    }
    Chunk chunk = std::move(chunks_.front());
    chunks_.erase(chunks_.begin());
    first_ += kChunk;
    return chunk;
  }

  // Finds the highest instant of the oldest chunk, as the number of its events before that, and
  // counts the dropped events.
  void find_highest(const Event* events, Highest& highest) const {
    const int64_t from = std::max<int64_t>(0, highest.begin - first_);
    int64_t level = level_;
    highest.instant = -1;
    for (int64_t index = 0; index <= kChunk; ++index) {
      if (index >= from && level > highest.level) {
        highest.level = level;
        highest.instant = index;
      }
      if (index < kChunk) {
        level += events[index].moves_bytes() ? events[index].size : 0;
        highest.dropped += index >= from && !events[index].is_gradient();
      }
    }
  }

  void settle(const Event& event) {
    if (event.moves_bytes()) {
      level_ += event.size;
      Past gone;
      if (event.is_free()) {
        past_.take(event.address, &gone);
      } else if (Past* past = past_.put(event.address); past != nullptr) {
        *past = Past{event.address, event.size, event.time, 0, event.stack, event.context, -1};
      }
    } else if (event.is_gradient()) {
      Past* past = past_.find(event.address);
      if (past != nullptr) {
        past->owner = event.owner();
      }
    }
  }

  void forget() {
    chunks_.clear();
    first_ = count_;
    past_.release();
    level_ = 0;
  }

  std::vector<Chunk> chunks_;
  std::vector<Reader> readers_;
  int64_t first_ = 0, count_ = 0, level_ = 0, generation_ = 0;
  Table<Past> past_;
};

Log& g_log = *new Log;

}  // namespace
