// Fills a log while there is no memory at all, and prints what it then has of the events that made
// way: how many are dropped; bytes that were there at the first event that is kept, and blocks and
// bytes in the list of them; the same of the highest instant before.
//
// Arguments: bytes of a block that comes before the memory ends, how many blocks of 64 bytes come
// after it and stay, how many come and go after that.
#include "log.hpp"

#include <cstdio>
#include <cstdlib>

#include <sys/resource.h>

namespace {

void take_all_memory() {
  const rlimit none{0, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &none);
  for (size_t bytes = 1 << 20; bytes >= 16; bytes /= 2) {
    while (void* volatile taken = std::malloc(bytes)) {
    }
  }
}

void give_memory_back() {
  const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
  setrlimit(RLIMIT_AS, &all);
}

void print(int64_t level, const Table<Past>& blocks) {
  int64_t bytes = 0;
  blocks.each([&](const Past& block) { bytes += block.size; });
  std::printf(" %lld %zu %lld", static_cast<long long>(level), blocks.used(),
              static_cast<long long>(bytes));
}

}  // namespace

int main(int, char** arguments) {
  const int64_t before = std::atoll(arguments[1]);
  const int64_t staying = std::atoll(arguments[2]), passing = std::atoll(arguments[3]);
  Highest highest;
  Log& log = g_log;
  log.begin(&highest, int64_t{1} << 40);
  log.take_room_to_fold();
  uintptr_t next = 64;
  const auto come = [&](int64_t bytes) {
    const Event event = Event::allocation(next, bytes, -1, -1);
    log.append(event);
    next += 64;
    return event;
  };
  come(before);
  take_all_memory();
  for (int64_t block = 0; block < staying; ++block) {
    come(64);
  }
  for (int64_t block = 0; block < passing; ++block) {
    log.append(come(64).as_free(64));
  }
  give_memory_back();
  std::printf("%lld", static_cast<long long>(highest.dropped));
  print(log.level(), log.past());
  print(highest.level, highest.blocks);
  std::printf("\n");
  return 0;
}
