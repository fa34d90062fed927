// Counts the bytes allocated by torch's CPU allocator: exact, process-wide, with the peak.
//
// Uses only c10's headers and links only libc10, to compile in a few seconds with the user's
// compiler. Nothing here is ever destroyed: storages may be freed during static destruction, after
// the interpreter has ended.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include "counting.hpp"

#include <cstdint>
#include <new>
#include <unordered_set>

namespace {

// An allocator that is counted, with the deleter of its blocks.
struct Counted {
  c10::Allocator* base = nullptr;
  c10::DeleterFnPtr base_deleter = nullptr;
  c10::Allocator* counting = nullptr;
};

// The current allocator, which torch lets anyone set, and the default one, which UntypedStorage(n),
// deepcopy and pickle use directly. Both have the same base unless the program has set another.
enum Place { kCurrent, kDefault, kPlaces };
Counted g_counted[kPlaces];

template <Place place>
void counting_deleter(void* data) {
  // Before the base frees it: after that another thread may get the same address.
  if (data != nullptr) {
    take_out(data);
  }
  g_counted[place].base_deleter(data);
}

c10::DataPtr allocate_or_note(c10::Allocator* base, size_t size) {
  try {
    return base->allocate(size);
  } catch (...) {
    note_failure(static_cast<int64_t>(size));
    throw;
  }
}

// Has no members, as one takes the place of an object that was constructed as another class.
template <Place place>
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const Counted& counted = g_counted[place];
    c10::DataPtr block = allocate_or_note(counted.base, size);
    // A block with a deleter or context of its own is not counted: its release is not seen.
    if (block.get() != nullptr && block.get() == block.get_context() &&
        block.get_deleter() == counted.base_deleter &&
        take_in(block.get(), static_cast<int64_t>(size))) {
      (void)block.compare_exchange_deleter(counted.base_deleter, &counting_deleter<place>);
    }
    return block;
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &counting_deleter<place>;
  }

  bool is_simple_data_ptr(const c10::DataPtr& block) const override {
    return g_counted[place].base->is_simple_data_ptr(block);
  }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    g_counted[place].base->copy_data(to, from, size);
  }
};

bool adopt(c10::StorageImpl& storage) {
  int64_t replaced;
  const Counted& counted = g_counted[kCurrent];
  auto& block = const_cast<c10::DataPtr&>(storage.data_ptr());
  if (block.get() == nullptr || block.get() != block.get_context() ||
      block.get_deleter() != counted.base_deleter ||
      !count_in(block.get(), static_cast<int64_t>(storage.nbytes()), Origin{}, &replaced)) {
    return false;
  }
  (void)block.compare_exchange_deleter(counted.base_deleter, &counting_deleter<kCurrent>);
  if (storage.allocator() == counted.base) {
    // else a later resize_ would bypass the counting
    storage.set_allocator(counted.counting);
  }
  return true;
}

bool is_defined(const c10::TensorImpl* tensor) {
  return tensor != nullptr && tensor != c10::UndefinedTensorImpl::singleton();
}

bool adopt_storage(const c10::TensorImpl& tensor) {
  // no checked accessors: sparse, nested and wrapper tensors override what these check
  c10::StorageImpl* const storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  try {
    return storage != nullptr && adopt(*storage);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    // a fake, symbolic or poisoned tensor has no memory of these allocators
    return false;
  }
}

// torch has a setter for the allocator of tensors, but none for the default one. That has no
// members, only a table of virtual functions: an object with its table does its work from now on,
// and the original gets our table.
bool take_over_default() {
  struct Lookalike {
    void* table;
    void* members[7];
  };
  static Lookalike original;
  c10::Allocator* standard = c10::GetDefaultCPUAllocator();
  void** identity = reinterpret_cast<void**>(standard);
  original.table = *identity;
  auto* base = reinterpret_cast<c10::Allocator*>(&original);
  const c10::DeleterFnPtr deleter = base->raw_deleter();
  if (deleter == nullptr || !Careful().can_write(identity)) {
    return false;
  }
  {
    const c10::DataPtr trial = base->allocate(64);
    if (trial.get() == nullptr || trial.get() != trial.get_context() ||
        trial.get_deleter() != deleter) {
      return false;
    }
  }
  g_counted[kDefault] = Counted{base, deleter, standard};
  void* const table = *reinterpret_cast<void**>(new CountingAllocator<kDefault>());
  __atomic_store_n(identity, table, __ATOMIC_RELEASE);
  return true;
}

}  // namespace

// Returns 0: installed, now or before; 1: the current allocator has no raw deleter; 2: another
// allocator with a higher priority is set.
TL_EXPORT int tl_install() {
  Counted& current = g_counted[kCurrent];
  if (current.counting != nullptr) {
    return 0;
  }
  c10::Allocator* const before = c10::GetCPUAllocator();
  current.base = before;
  current.base_deleter = before->raw_deleter();
  if (current.base_deleter == nullptr) {
    return 1;
  }
  if (before == c10::GetDefaultCPUAllocator() && take_over_default()) {
    current.base = g_counted[kDefault].base;
  }
  auto* counting = new CountingAllocator<kCurrent>();
  c10::SetCPUAllocator(counting, 0xFF);
  if (c10::GetCPUAllocator() != counting) {
    delete counting;
    return 2;
  }
  current.counting = counting;
  begin_counting();
  return 0;
}

// Returns whether storages of the default allocator are counted as well.
TL_EXPORT int64_t tl_counts_default() {
  return g_counted[kDefault].counting != nullptr;
}

// Adds existing storages of tensors and of their gradients to the count, until they are released.
// The caller keeps the tensors alive during the call. Returns the number of storages added, or -1
// if no memory is left.
TL_EXPORT int64_t tl_adopt(const c10::TensorImpl* const* tensors, int64_t length) {
  try {
    std::unordered_set<const c10::TensorImpl*> seen;
    int64_t adopted = 0;
    for (int64_t index = 0; index < length; ++index) {
      const c10::TensorImpl* tensor = tensors[index];
      // creates no Python objects of gradients and storages
      while (is_defined(tensor) && seen.insert(tensor).second) {
        adopted += adopt_storage(*tensor);
        // at::Tensor, which is not in c10, is one intrusive pointer
        tensor = *reinterpret_cast<const c10::TensorImpl* const*>(&tensor->grad());
      }
    }
    return adopted;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
