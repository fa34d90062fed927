// Memory for what a search notes: in pages of its own, large ones where the system has them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include <sys/mman.h>

namespace {

// A page fault costs microseconds, and a search of a large heap would meet thousands. Nothing of it
// stays behind, neither in the process nor as holes in its C heap.
template <typename Value>
struct LargePages {
  using value_type = Value;
  static constexpr size_t kPage = size_t{2} << 20;

  LargePages() = default;
  template <typename Other>
  LargePages(const LargePages<Other>&) {}

  Value* allocate(size_t count) {
    const size_t bytes = count * sizeof(Value);
    void* const start = bytes < kPage / 2 ? std::malloc(bytes) : map(whole(bytes));
    if (start == nullptr) {
      throw std::bad_alloc();
    }
    return static_cast<Value*>(start);
  }
  void deallocate(Value* start, size_t count) {
    const size_t bytes = count * sizeof(Value);
    if (bytes < kPage / 2) {
      std::free(start);
    } else {
      munmap(start, whole(bytes));
    }
  }
  bool operator==(const LargePages&) const { return true; }
  bool operator!=(const LargePages&) const { return false; }

 private:
  static size_t whole(size_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

  // A large page begins at a multiple of its size.
  static void* map(size_t bytes) {
    void* const mapped = mmap(
        nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (mapped == MAP_FAILED) {
      return nullptr;
    }
    char* const first = static_cast<char*>(mapped);
    char* const start = reinterpret_cast<char*>(whole(reinterpret_cast<uintptr_t>(first)));
    if (start > first) {
      munmap(first, start - first);
    }
    if (start < first + kPage) {
      munmap(start + bytes, first + kPage - start);
    }
#ifdef MADV_HUGEPAGE
    madvise(start, bytes, MADV_HUGEPAGE);
#endif
    return start;
  }
};

template <typename Value>
using Large = std::vector<Value, LargePages<Value>>;

}  // namespace
