// Counts the bytes that torch's CPU allocator hands out: exact, process-wide, with the peak.
//
// Only c10's headers are used and only libc10 is linked, so that it compiles in a few seconds
// with the user's compiler. Nothing here is ever torn down: storages are freed as late as static
// destruction, long after the interpreter is gone.

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

// An allocator that is counted, and how its blocks are released.
struct Counted {
  c10::Allocator* base = nullptr;
  c10::DeleterFnPtr base_deleter = nullptr;
  c10::Allocator* counting = nullptr;
};

// The one for tensors, which can be set, and the default one, which UntypedStorage(n), deepcopy
// and pickle go to directly. Unless someone has set another, both have the same base.
enum Place { kCurrent, kDefault, kPlaces };
Counted g_counted[kPlaces];

template <Place place>
void counting_deleter(void* data) {
  // Before the base frees it: from then on another thread may be given the same address.
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

// Without members: one of them takes over the identity of an object that it did not construct.
template <Place place>
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const Counted& counted = g_counted[place];
    c10::DataPtr block = allocate_or_note(counted.base, size);
    // Where the base gave a block with a deleter or context of its own, its release could not
    // be seen, so it is not counted either.
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
    // or a later resize_ would go around us
    storage.set_allocator(counted.counting);
  }
  return true;
}

bool is_defined(const c10::TensorImpl* tensor) {
  return tensor != nullptr && tensor != c10::UndefinedTensorImpl::singleton();
}

bool adopt_storage(const c10::TensorImpl& tensor) {
  // none of the checked accessors: sparse, nested and wrapper tensors redefine what these check
  c10::StorageImpl* const storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  try {
    return storage != nullptr && adopt(*storage);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    // fake, symbolic or poisoned: it holds no memory of these allocators
    return false;
  }
}

// torch lets the allocator of tensors be set, but not the default one. It has no members, so it
// is known by its table of virtual functions alone: an object with that table goes on doing its
// work, and the original is given ours.
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

// 0: in place (also when it already was). 1: the allocator in place gives no raw deleter.
// 2: another allocator insists on its place.
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

// Whether storages made from the default allocator itself are counted as well.
TL_EXPORT int64_t tl_counts_default() {
  return g_counted[kDefault].counting != nullptr;
}

// Counts in the storages that were made before, of tensors and of their gradients, so that their
// release counts out. The caller keeps the tensors alive during the call. Gives how many storages
// were taken, or -1 without memory.
TL_EXPORT int64_t tl_adopt(const c10::TensorImpl* const* tensors, int64_t length) {
  try {
    std::unordered_set<const c10::TensorImpl*> seen;
    int64_t adopted = 0;
    for (int64_t index = 0; index < length; ++index) {
      const c10::TensorImpl* tensor = tensors[index];
      // no Python object is made for a gradient that nobody has looked at, nor for a storage
      while (is_defined(tensor) && seen.insert(tensor).second) {
        adopted += adopt_storage(*tensor);
        // at::Tensor, which is not in c10, is one pointer that counts
        tensor = *reinterpret_cast<const c10::TensorImpl* const*>(&tensor->grad());
      }
    }
    return adopted;
  } catch (const std::bad_alloc&) {
    return -1;
  }
}
