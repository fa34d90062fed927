// Counts the bytes that TensorFlow's CPU allocator hands out: exact, process-wide, with the peak.
//
// TensorFlow does not let anybody replace the allocator after its first use. So it stays, and its
// object gets a table of virtual functions of ours: a copy of its own, in which the functions that
// allocate and free count first. Their indices come from the headers of the installed TensorFlow;
// only three headers are used, so that this compiles in a few seconds.

#if __has_include("xla/tsl/framework/allocator.h")
#include "xla/tsl/framework/allocator.h"
#else
#include "tsl/framework/allocator.h"
#endif
#include "tsl/profiler/lib/scoped_memory_debug_annotation.h"
#if __has_include("xla/tsl/platform/env.h")
#include "xla/tsl/platform/env.h"
#else
#include "tsl/platform/env.h"
#endif

#include "counting.hpp"
#include "node_log.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace tensorflow {

// Its own header includes half of TensorFlow. Weak: another release may have it elsewhere.
class ProcessState {
 public:
  __attribute__((weak)) static ProcessState* singleton();
  __attribute__((weak)) tsl::Allocator* GetCPUAllocator(int numa_node);
};

}  // namespace tensorflow

namespace {

using tsl::AllocationAttributes;
using tsl::Allocator;

using Allocate = void* (*)(Allocator*, size_t, size_t);
using AllocateWith = void* (*)(Allocator*, size_t, size_t, const AllocationAttributes&);
using Deallocate = void (*)(Allocator*, void*);
using DeallocateSized = void (*)(Allocator*, void*, size_t, size_t);

// Index of a virtual function in the table, from a pointer to it; -1 if it is not virtual (Itanium
// C++ ABI 2.3; on ARM the bit for virtual is in the second word, C++ ABI for the Arm architecture
// 3.2.1).
template <typename Function>
int index_of(Function function) {
  uintptr_t words[2];
  static_assert(sizeof function == sizeof words, "a pointer to a member is two words");
  std::memcpy(words, &function, sizeof words);
#if defined(__aarch64__) || defined(__arm__)
  return words[1] & 1 ? static_cast<int>(words[0] / sizeof(void*)) : -1;
#else
  return words[0] & 1 ? static_cast<int>((words[0] - 1) / sizeof(void*)) : -1;
#endif
}

const int kAllocate =
    index_of(static_cast<void* (Allocator::*)(size_t, size_t)>(&Allocator::AllocateRaw));
const int kAllocateWith =
    index_of(static_cast<void* (Allocator::*)(size_t, size_t, const AllocationAttributes&)>(
        &Allocator::AllocateRaw));
const int kDeallocate = index_of(static_cast<void (Allocator::*)(void*)>(&Allocator::DeallocateRaw));
// an overload that TensorFlow has since 2.17
template <typename Base>
auto index_of_sized(int) -> decltype(
    index_of(static_cast<void (Base::*)(void*, size_t, size_t)>(&Base::DeallocateRaw))) {
  return index_of(static_cast<void (Base::*)(void*, size_t, size_t)>(&Base::DeallocateRaw));
}
template <typename Base>
int index_of_sized(...) {
  return -1;
}
const int kDeallocateSized = index_of_sized<Allocator>(0);

// The words before a table are the offset to the object's top and the object's type.
constexpr int kBefore = 2, kWords = 48;
void* g_table[kBefore + kWords];
void** g_original = nullptr;

template <typename Function>
Function original(int index) {
  return reinterpret_cast<Function>(g_original[index]);
}

// Depth of calls: one of these functions may call another.
thread_local int t_inside = 0;

struct Inside {
  Inside() {
    ++t_inside;
  }
  ~Inside() {
    --t_inside;
  }
  bool is_outermost() const {
    return t_inside == 1;
  }
};

int32_t node_here();

void* counted(void* block, size_t bytes, const Inside& inside) {
  if (inside.is_outermost() && bytes != 0) {
    if (block == nullptr) {
      note_failure(static_cast<int64_t>(bytes));
    } else {
      take_in(block, static_cast<int64_t>(bytes));
      if (g_node_log.is_on()) {
        log_node(block, static_cast<int64_t>(bytes), node_here());
      }
    }
  }
  return block;
}

void* allocate(Allocator* self, size_t alignment, size_t bytes) {
  const Inside inside;
  return counted(original<Allocate>(kAllocate)(self, alignment, bytes), bytes, inside);
}

void* allocate_with(
    Allocator* self, size_t alignment, size_t bytes, const AllocationAttributes& attributes) {
  const Inside inside;
  return counted(
      original<AllocateWith>(kAllocateWith)(self, alignment, bytes, attributes), bytes, inside);
}

// Called before the block is freed: afterwards another thread may get the same address.
void uncount(void* block, const Inside& inside) {
  if (inside.is_outermost() && block != nullptr) {
    if (g_node_log.is_on()) {
      log_free(block);
    }
    take_out(block);
  }
}

void deallocate(Allocator* self, void* block) {
  const Inside inside;
  uncount(block, inside);
  original<Deallocate>(kDeallocate)(self, block);
}

void deallocate_sized(Allocator* self, void* block, size_t alignment, size_t bytes) {
  const Inside inside;
  uncount(block, inside);
  original<DeallocateSized>(kDeallocateSized)(self, block, alignment, bytes);
}

// Number of this thread's name if it is one of tf.data's, which makes elements outside of nodes:
// tf_data_prefetch, tf_data_iterator_get_next. Else -1.
int32_t data_thread() {
  constexpr int32_t kUnknown = -2;
  thread_local int32_t number = kUnknown;
  if (number == kUnknown) {
    std::string name;
    const bool has_name = tsl::Env::Default()->GetCurrentThreadName(&name);
    const bool is_of_data = has_name && name.rfind("tf_data_", 0) == 0;
    // the thread's own number follows
    number = is_of_data ? g_op_names.number(name.substr(0, name.find('/'))) : -1;
  }
  return number;
}

int32_t node_here() {
  const auto& now = tsl::profiler::ScopedMemoryDebugAnnotation::CurrentAnnotation();
  const auto name = std::string_view(now.pending_op_name);
  return name.empty() ? data_thread() : g_op_names.number(std::string(name));
}

// Returns false if the table cannot be read or the object cannot be written.
bool tap(Allocator* allocator) {
  void** const identity = reinterpret_cast<void**>(allocator);
  void** const original = static_cast<void**>(*identity);
  // the end of the table is unknown: all is copied that can be read
  Careful read;
  for (int word = 0; word < kBefore + kWords; ++word) {
    void* const value = read.get<void*>(reinterpret_cast<uintptr_t>(original - kBefore + word));
    if (read.failed()) {
      if (word <= kBefore + kDeallocate || word <= kBefore + kDeallocateSized) {
        return false;
      }
      break;
    }
    g_table[word] = value;
  }
  void** const table = g_table + kBefore;
  table[kAllocate] = reinterpret_cast<void*>(&allocate);
  table[kAllocateWith] = reinterpret_cast<void*>(&allocate_with);
  table[kDeallocate] = reinterpret_cast<void*>(&deallocate);
  if (kDeallocateSized >= 0) {
    table[kDeallocateSized] = reinterpret_cast<void*>(&deallocate_sized);
  }
  if (!Careful().can_write(identity)) {
    return false;
  }
  g_original = original;
  __atomic_store_n(identity, static_cast<void*>(table), __ATOMIC_RELEASE);
  return true;
}

bool counts_trial(Allocator* allocator) {
  constexpr int64_t kBytes = 4096;
  void* const block = allocator->AllocateRaw(Allocator::kAllocatorAlignment, kBytes);
  const auto address = reinterpret_cast<uintptr_t>(block);
  const bool taken_in = size_of(address) == kBytes;
  if (block != nullptr) {
    allocator->DeallocateRaw(block);
  }
  return taken_in && size_of(address) < 0;
}

}  // namespace

// Returns 0 if the allocator is tapped now, or was before. 1: the functions are not virtual. 2: the
// allocator's table cannot be replaced. 3: its blocks are not counted. 4: there are two allocators,
// as with TF_CPU_ALLOCATOR_USE_BFC.
TL_EXPORT int tl_install() {
  if (g_original != nullptr) {
    return 0;
  }
  if (kAllocate < 0 || kAllocateWith < 0 || kDeallocate < 0) {
    return 1;
  }
  Allocator* const base = tsl::cpu_allocator_base();
  if (&tensorflow::ProcessState::singleton != nullptr &&
      tensorflow::ProcessState::singleton()->GetCPUAllocator(0) != base) {
    return 4;
  }
  if (!tap(base)) {
    return 2;
  }
  if (!counts_trial(base)) {
    return 3;
  }
  g_node_here.store(&node_here);
  begin_counting();
  follow_forks();
  return 0;
}

// Counts blocks from before, so that their release is counted too. Returns their number.
TL_EXPORT int64_t tl_adopt(const uint64_t* addresses, const int64_t* sizes, int64_t length) {
  int64_t adopted = 0;
  for (int64_t index = 0; index < length; ++index) {
    const auto* const block = reinterpret_cast<const void*>(addresses[index]);
    int64_t replaced;
    if (block != nullptr && sizes[index] > 0 && size_of(addresses[index]) < 0) {
      adopted += count_in(block, sizes[index], Origin{}, &replaced);
    }
  }
  return adopted;
}
