// The resident set of the process, seldom enough to cost next to nothing.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>

#include <fcntl.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach/mach.h>
#endif

namespace {

std::atomic<int> g_statm{-1};

void open_statm() {
#ifdef __linux__
  g_statm.store(open("/proc/self/statm", O_RDONLY | O_CLOEXEC), std::memory_order_relaxed);
#endif
}

// Gives -1 unless the text is seven numbers, of which the second is the resident pages: the
// program may have closed our descriptor and been given its number for a file of its own.
int64_t resident_pages(const char* text, ssize_t length) {
  int64_t pages = 0;
  int field = 0;
  if (length < 14 || text[length - 1] != '\n') {
    return -1;
  }
  for (ssize_t index = 0; index < length - 1; ++index) {
    const char letter = text[index];
    if (letter == ' ') {
      ++field;
    } else if (letter < '0' || letter > '9') {
      return -1;
    } else if (field == 1) {
      pages = 10 * pages + (letter - '0');
    }
  }
  return field == 6 ? pages : -1;
}

int64_t read_resident() {
#if defined(__linux__)
  static const int64_t page = sysconf(_SC_PAGESIZE);
  char text[192];
  for (int attempt = 0; attempt < 2; ++attempt) {
    const int file = g_statm.load(std::memory_order_relaxed);
    if (file >= 0) {
      const int64_t pages = resident_pages(text, pread(file, text, sizeof text, 0));
      if (pages >= 0) {
        return pages * page;
      }
    }
    open_statm();
  }
  return -1;
#elif defined(__APPLE__)
  mach_task_basic_info info;
  mach_msg_type_number_t count = MACH_TASK_BASIC_INFO_COUNT;
  const kern_return_t status = task_info(
      mach_task_self(), MACH_TASK_BASIC_INFO, reinterpret_cast<task_info_t>(&info), &count);
  return status == KERN_SUCCESS ? static_cast<int64_t>(info.resident_size) : -1;
#else
  return -1;
#endif
}

// Asking the kernel costs more than all else of a read: a microsecond, or twenty where its code has
// left the processor's cache. The answer moves with page faults, not with single lines, so it is
// asked again only when three hundred times what the last time took has gone by.
constexpr int64_t kShare = 300;

std::atomic<int64_t> g_resident{-1};
std::atomic<int64_t> g_ask_again{0};

int64_t monotonic_ns() {
  timespec clock;
  clock_gettime(CLOCK_MONOTONIC, &clock);
  return int64_t{1'000'000'000} * clock.tv_sec + clock.tv_nsec;
}

int64_t recent_resident() {
  const int64_t begun = monotonic_ns();
  if (begun >= g_ask_again.load(std::memory_order_relaxed)) {
    g_resident.store(read_resident(), std::memory_order_relaxed);
    const int64_t ended = monotonic_ns();
    // a pause of this thread in between is no cost of asking
    const int64_t cost = std::min<int64_t>(ended - begun, 30'000);
    g_ask_again.store(ended + kShare * cost, std::memory_order_relaxed);
  }
  return g_resident.load(std::memory_order_relaxed);
}

}  // namespace
