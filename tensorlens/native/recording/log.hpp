// Every allocation and free while something records, in the order of the counter's figures.
//
// Memory is bounded: beyond a number of events the oldest are folded into what was resident when
// the next one happened, and for each recording the highest instant among them is kept.

#pragma once

#include "blocks.hpp"

#include <memory>
#include <new>
#include <vector>

namespace {

// In 32 bytes what happened to a block, that a request failed, or a note: that a block is a
// gradient, or that a moment has a name. It is made by the functions of its kinds.
struct Event {
  uint64_t address;  // 0: of no block
  int64_t size;      // negative for a free; 0: a note
  int64_t time;      // of a note what it says in place of the time
  int32_t stack;
  int32_t context;

  // The time is filled in where the event takes its place in the log.
  static Event allocation(uintptr_t address, int64_t size, int32_t stack, int32_t context) {
    return Event{address, size, 0, stack, context};
  }
  static Event failure(int64_t size, int32_t stack, int32_t context) {
    return Event{0, size, 0, stack, context};
  }
  static Event gradient(uintptr_t address, uintptr_t of) {
    return Event{address, 0, static_cast<int64_t>(of), -1, -1};
  }
  static Event mark(int64_t number) {
    return Event{0, 0, number, -1, -1};
  }
  // The free of a block, by what ran at this event.
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
  bool is_note() const {
    return size == 0;
  }
  bool is_mark() const {
    return address == 0 && size == 0;
  }
  bool is_gradient() const {
    return address != 0 && size == 0;
  }
  int64_t bytes() const {
    return size < 0 ? -size : size;
  }
  int64_t number() const {
    return time;
  }
  uintptr_t owner() const {
    return static_cast<uintptr_t>(time);
  }
};

// What was resident, as a block of the log's past.
struct Past {
  uintptr_t key;
  int64_t size;
  int64_t time;   // -1: it was there before anyone recorded
  uint64_t owner;  // what it is the gradient of
  int32_t stack, context, birth;
};

// The highest instant of a recording among the events that are folded.
struct Highest {
  int64_t begin = 0;   // the number of the recording's first event
  int64_t dropped = 0;  // how many are folded, notes not counted
  int64_t level = -1;  // -1: none is folded
  int64_t instant = -1;  // while events are folded: where among them
  Table<Past> blocks;

  ~Highest() {
    blocks.release();
  }
};

// Whoever calls holds the lock.
class Log {
 public:
  static constexpr int64_t kChunk = 1 << 12, kMostChunks = 1 << 20;

  struct Reader {
    Highest* highest;
    int64_t limit;
  };

  // Gives whether it is the first who records. `limit` events are kept at least, notes counted.
  // The first one calls remember() for each block then.
  bool begin(Highest* highest, int64_t limit) {
    // so that nothing but a chunk is asked for while events come
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

  // Gives whether nobody records any more.
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

  // What its parent records is none of a child's business; see `generation`.
  void abandon() {
    readers_.clear();
    forget();
    ++generation_;
  }

  void append(const Event& event) noexcept {
    const int64_t place = (count_ - first_) & (kChunk - 1);
    if (place == 0 && count_ - first_ == static_cast<int64_t>(chunks_.size()) * kChunk) {
      make_room();
    }
    chunks_.back()[place] = event;
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
  // Recordings of another generation are over.
  int64_t generation() const {
    return generation_;
  }

  // How many bytes there were at the first event that is kept.
  int64_t level() const {
    return level_;
  }

  const Event& at(int64_t number) const {
    const int64_t index = number - first_;
    return chunks_[index / kChunk][index & (kChunk - 1)];
  }

  // What is there when the log begins, for what is folded later.
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

  // Where there is no memory for more events, fewer are kept.
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

  // Takes the oldest chunk into what was there when the log begins; gives its memory.
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

  // Counts what is dropped as well. An instant is known by how many of the oldest chunk's events
  // came before it.
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
        highest.dropped += index >= from && !events[index].is_note();
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
