// Counts the bytes that torch's CPU allocator hands out: exact, process-wide, with the peak.
//
// Only c10's headers are used and only libc10 is linked, so that it compiles in about a second
// with the user's compiler. Nothing here is ever torn down: storages are freed as late as static
// destruction, long after the interpreter is gone.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <cstdlib>

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach/mach.h>
#endif

#define TL_EXPORT extern "C" __attribute__((visibility("default")))

// A few names of CPython's stable ABI, found in the running interpreter: Python.h is not needed,
// which on many machines is a package of its own.
using PyObject = struct _object;
struct MethodDefinition {  // PyMethodDef
  const char* name;
  PyObject* (*function)(PyObject*, PyObject*);
  int flags;
  const char* doc;
};
constexpr int kMethodWithoutArguments = 0x0004;  // METH_NOARGS
extern "C" PyObject* PyCFunction_NewEx(MethodDefinition*, PyObject*, PyObject*);
extern "C" PyObject* PyTuple_New(ssize_t);
extern "C" int PyTuple_SetItem(PyObject*, ssize_t, PyObject*);
extern "C" PyObject* PyLong_FromLongLong(long long);

namespace {

std::atomic<int64_t> g_allocated{0};
std::atomic<int64_t> g_peak{0};

void raise_peak(int64_t level) {
  int64_t peak = g_peak.load(std::memory_order_relaxed);
  while (peak < level &&
         !g_peak.compare_exchange_weak(peak, level, std::memory_order_relaxed)) {
  }
}

void count(int64_t bytes) {
  const int64_t level = g_allocated.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  if (bytes > 0) {
    raise_peak(level);
  }
}

// A block's requested size by its address. The deleter is given nothing but the address, and
// malloc_usable_size rounds up, so the size has to be kept. Open addressing with linear probing:
// one table per shard, no memory taken per block.
class alignas(64) Shard {
 public:
  void lock() {
    for (int spins = 0; busy_.exchange(true, std::memory_order_acquire); ++spins) {
      if (spins >= 64) {
        sched_yield();
      }
    }
  }

  void unlock() {
    busy_.store(false, std::memory_order_release);
  }

  // Gives the size a stale entry held (-1 if there was none): a block that someone freed behind
  // our back, whose address has now been handed out again. False when there is no memory.
  bool put(uintptr_t address, uint64_t hash, int64_t size, int64_t* stale) {
    *stale = -1;
    // Three quarters full at most: beyond that, linear probing gets slow.
    if (4 * (used_ + 1) > 3 * capacity_ && !resize(capacity_ ? 2 * capacity_ : kSmallest)) {
      return false;
    }
    Slot* slot = find(address, hash);
    if (slot->address == address) {
      *stale = slot->size;
    } else {
      ++used_;
    }
    *slot = Slot{address, size};
    return true;
  }

  // Gives -1 when the address is not known: a block from before the allocator was installed.
  int64_t take(uintptr_t address, uint64_t hash) {
    if (used_ == 0) {
      return -1;
    }
    Slot* slot = find(address, hash);
    if (slot->address != address) {
      return -1;
    }
    const int64_t size = slot->size;
    close_gap(static_cast<size_t>(slot - slots_));
    --used_;
    if (capacity_ > kSmallest && 16 * used_ < capacity_) {
      resize(capacity_ / 4);
    }
    return size;
  }

  size_t used() const {
    return used_;
  }

  static uint64_t hash(uintptr_t address) {
    // malloc's alignment leaves nothing in the low bits; the product's high ones hold the most
    return (static_cast<uint64_t>(address) >> 4) * 0x9E3779B97F4A7C15ull;
  }

 private:
  struct Slot {
    uintptr_t address;
    int64_t size;
  };

  static constexpr size_t kSmallest = 64;

  size_t home(uint64_t hash) const {
    return static_cast<size_t>(hash >> 16) & (capacity_ - 1);
  }

  Slot* find(uintptr_t address, uint64_t hash) {
    size_t index = home(hash);
    while (slots_[index].address != 0 && slots_[index].address != address) {
      index = (index + 1) & (capacity_ - 1);
    }
    return &slots_[index];
  }

  // Moves later entries of the run back, so that lookups need no tombstones.
  void close_gap(size_t gap) {
    const size_t mask = capacity_ - 1;
    for (size_t next = (gap + 1) & mask; slots_[next].address != 0; next = (next + 1) & mask) {
      const size_t wanted = home(hash(slots_[next].address));
      if (((next - wanted) & mask) >= ((next - gap) & mask)) {
        slots_[gap] = slots_[next];
        gap = next;
      }
    }
    slots_[gap] = Slot{0, 0};
  }

  bool resize(size_t capacity) {
    auto* fresh = static_cast<Slot*>(std::calloc(capacity, sizeof(Slot)));
    if (fresh == nullptr) {
      return false;
    }
    Slot* old = slots_;
    const size_t count = capacity_;
    slots_ = fresh;
    capacity_ = capacity;
    for (size_t index = 0; index < count; ++index) {
      if (old[index].address != 0) {
        *find(old[index].address, hash(old[index].address)) = old[index];
      }
    }
    std::free(old);
    return true;
  }

  std::atomic<bool> busy_{false};
  Slot* slots_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

// few enough that all of them stay in a core's cache
constexpr int kShardBits = 4;
Shard g_shards[1 << kShardBits];

Shard& shard_of(uint64_t hash) {
  return g_shards[hash >> (64 - kShardBits)];
}

bool count_in(const void* data, int64_t size) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uint64_t hash = Shard::hash(address);
  Shard& shard = shard_of(hash);
  int64_t stale = -1;
  shard.lock();
  const bool kept = shard.put(address, hash, size, &stale);
  shard.unlock();
  if (stale >= 0) {
    count(-stale);
  }
  if (kept) {
    count(size);
  }
  return kept;
}

void count_out(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uint64_t hash = Shard::hash(address);
  Shard& shard = shard_of(hash);
  shard.lock();
  const int64_t size = shard.take(address, hash);
  shard.unlock();
  if (size >= 0) {
    count(-size);
  }
}

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
    count_out(data);
  }
  g_counted[place].base_deleter(data);
}

// Without members: one of them takes over the identity of an object that it did not construct.
template <Place place>
struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const Counted& counted = g_counted[place];
    c10::DataPtr block = counted.base->allocate(size);
    // Where the base gave a block with a deleter or context of its own, its release could not
    // be seen, so it is not counted either.
    if (block.get() != nullptr && block.get() == block.get_context() &&
        block.get_deleter() == counted.base_deleter &&
        count_in(block.get(), static_cast<int64_t>(size))) {
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
  const Counted& counted = g_counted[kCurrent];
  auto& block = const_cast<c10::DataPtr&>(storage.data_ptr());
  if (block.get() == nullptr || block.get() != block.get_context() ||
      block.get_deleter() != counted.base_deleter ||
      !count_in(block.get(), static_cast<int64_t>(storage.nbytes()))) {
    return false;
  }
  (void)block.compare_exchange_deleter(counted.base_deleter, &counting_deleter<kCurrent>);
  if (storage.allocator() == counted.base) {
    // or a later resize_ would go around us
    storage.set_allocator(counted.counting);
  }
  return true;
}

// Asks the kernel to write there, which fails where a plain store would end the process.
bool is_writable(void* address) {
  int ends[2];
  if (pipe(ends) != 0) {
    return false;
  }
  const bool written = write(ends[1], address, sizeof(void*)) == sizeof(void*) &&
      read(ends[0], address, sizeof(void*)) == sizeof(void*);
  close(ends[0]);
  close(ends[1]);
  return written;
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
  if (deleter == nullptr || !is_writable(identity)) {
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

// The resident set.

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

// Asking the kernel costs more than all else of a read: a microsecond, or ten where its code has
// left the processor's cache. The answer moves with page faults, not with single lines, so it is
// asked again only when a hundred times what the last time took has gone by: at most one percent.
constexpr int64_t kShare = 100;

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
    const int64_t cost = std::min<int64_t>(ended - begun, 10'000);
    g_ask_again.store(ended + kShare * cost, std::memory_order_relaxed);
  }
  return g_resident.load(std::memory_order_relaxed);
}

// A fork copies one thread only. Holding every lock across it means that no other thread leaves
// a table half written in the child.

void before_fork() {
  for (Shard& shard : g_shards) {
    shard.lock();
  }
}

void after_fork() {
  for (Shard& shard : g_shards) {
    shard.unlock();
  }
}

void after_fork_in_child() {
  after_fork();
  g_ask_again.store(0, std::memory_order_relaxed);
  const int parents = g_statm.exchange(-1, std::memory_order_relaxed);
  if (parents >= 0) {
    close(parents);
    open_statm();
  }
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
  open_statm();
  pthread_atfork(&before_fork, &after_fork, &after_fork_in_child);
  return 0;
}

// Whether storages made from the default allocator itself are counted as well.
TL_EXPORT int64_t tl_counts_default() {
  return g_counted[kDefault].counting != nullptr;
}

// Counts in the storages that were made before, so that their release counts out. The caller
// keeps the storages alive during the call. Gives how many were taken.
TL_EXPORT int64_t tl_adopt(c10::StorageImpl* const* storages, int64_t length) {
  int64_t adopted = 0;
  for (int64_t index = 0; index < length; ++index) {
    try {
      adopted += adopt(*storages[index]);
    } catch (...) {
      // fake, symbolic or poisoned: it holds no memory of these allocators
    }
  }
  return adopted;
}

// Gives allocated, peak since the previous call by anyone, and the resident set (at most
// 1 ms old), in bytes.
TL_EXPORT void tl_read(int64_t* figures) {
  const int64_t allocated = g_allocated.load(std::memory_order_relaxed);
  const int64_t peak = g_peak.exchange(allocated, std::memory_order_relaxed);
  // what another thread was given between the two belongs to the new interval as well
  raise_peak(g_allocated.load(std::memory_order_relaxed));
  figures[0] = allocated;
  figures[1] = peak > allocated ? peak : allocated;
  figures[2] = recent_resident();
}

static PyObject* read_as_tuple(PyObject*, PyObject*) {
  int64_t figures[3];
  tl_read(figures);
  PyObject* result = PyTuple_New(3);
  if (result != nullptr) {
    for (ssize_t index = 0; index < 3; ++index) {
      PyTuple_SetItem(result, index, PyLong_FromLongLong(figures[index]));
    }
  }
  return result;
}

// Makes tl_read a builtin without arguments: a third of a microsecond less per call than through
// ctypes, and no buffer, so that threads may share it.
TL_EXPORT PyObject* tl_make_reader() {
  // the builtin points at it, and may outlive everything else at the interpreter's exit
  static MethodDefinition definition = {"read", read_as_tuple, kMethodWithoutArguments, nullptr};
  return PyCFunction_NewEx(&definition, nullptr, nullptr);
}

TL_EXPORT int64_t tl_allocated() {
  return g_allocated.load(std::memory_order_relaxed);
}

TL_EXPORT int64_t tl_blocks() {
  int64_t blocks = 0;
  for (Shard& shard : g_shards) {
    shard.lock();
    blocks += static_cast<int64_t>(shard.used());
    shard.unlock();
  }
  return blocks;
}

TL_EXPORT int64_t tl_resident() {
  return read_resident();
}
