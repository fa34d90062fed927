// The resident set of the process, read seldom enough to cost next to nothing.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach/mach.h>
#endif

namespace {

int64_t read_resident() {
#if defined(__linux__)
  static const int64_t page = sysconf(_SC_PAGESIZE);
  // opened each time: the program may close descriptors, and after a fork they are the parent's
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return -1;
  }
  char text[192];
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  text[std::max<ssize_t>(length, 0)] = '\0';
  // total and resident pages, and five more numbers
  const char* const resident = std::strchr(text, ' ');
  return resident == nullptr ? -1 : page * std::strtoll(resident, nullptr, 10);
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

// Asking the kernel costs more than the rest of a read: a few microseconds, or twenty if its code
// has left the processor's cache. The figure changes with page faults, not single lines, so the
// next request waits three hundred times as long as the last one took.
constexpr int64_t kWaitFactor = 300;

std::atomic<int64_t> g_resident{-1};
std::atomic<int64_t> g_ask_again{0};

// The clock of Python's time.monotonic_ns().
#ifdef __APPLE__
constexpr clockid_t kMonotonic = CLOCK_UPTIME_RAW;
#else
constexpr clockid_t kMonotonic = CLOCK_MONOTONIC;
#endif

int64_t monotonic_ns() {
  timespec clock;
  clock_gettime(kMonotonic, &clock);
  return int64_t{1'000'000'000} * clock.tv_sec + clock.tv_nsec;
}

int64_t recent_resident() {
  const int64_t begun = monotonic_ns();
  if (begun >= g_ask_again.load(std::memory_order_relaxed)) {
    g_resident.store(read_resident(), std::memory_order_relaxed);
    const int64_t ended = monotonic_ns();
    // a pause of this thread is not part of the cost
    const int64_t cost = std::min<int64_t>(ended - begun, 30'000);
    g_ask_again.store(ended + kWaitFactor * cost, std::memory_order_relaxed);
  }
  return g_resident.load(std::memory_order_relaxed);
}

}  // namespace
