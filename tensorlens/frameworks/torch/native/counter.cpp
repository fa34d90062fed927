// Counts the bytes that torch's CPU allocator hands out: exact, process-wide, with the peak.
//
// Only c10's headers are used and only libc10 is linked, so that it compiles in about a second
// with the user's compiler. Nothing here is ever torn down: storages are freed as late as static
// destruction, long after the interpreter is gone.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>

#include "exports.hpp"
#include "living.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <new>
#include <unordered_set>

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach/mach.h>
#endif

#define TL_EXPORT extern "C" __attribute__((visibility("default")))

// A few names of CPython's stable ABI, found in the running interpreter: Python.h is not needed,
// which on many machines is a package of its own.
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
    if (g_recording.load(std::memory_order_relaxed)) {
      record_out(data);
    } else {
      count_out(data);
    }
  }
  g_counted[place].base_deleter(data);
}

bool take_in(const void* data, int64_t size) {
  if (g_recording.load(std::memory_order_relaxed)) {
    return record_in(data, size);
  }
  int64_t replaced;
  return count_in(data, size, birth_here(), &replaced);
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
      !count_in(block.get(), static_cast<int64_t>(storage.nbytes()), kNoBirth, &replaced)) {
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
  lock_births();
  g_failure_lock.lock();
  lock_events();
  lock_blocks();
}

void after_fork() {
  unlock_blocks();
  unlock_events();
  g_failure_lock.unlock();
  unlock_births();
}

void after_fork_in_child() {
  after_fork();
  stop_in_child();
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
  return count_blocks();
}

TL_EXPORT int64_t tl_resident() {
  return read_resident();
}

// Compares the table with the blocks at the addresses, at one moment. `sizes` gets a size (or -1)
// per address; `largest` address, size and birth of up to `limit` blocks that are at none of them;
// `figures` allocated, named, and the numbers of blocks at none of the addresses and in `largest`.
// 1 when there is no memory for it.
TL_EXPORT int tl_balance(
    const uint64_t* addresses, int64_t length, int64_t* sizes, int64_t* largest, int64_t limit,
    int64_t* figures) {
  try {
    BlocksNow blocks;
    if (!blocks.whole()) {
      return 1;
    }
    const int64_t named = blocks.name(addresses, sizes, length);
    const Unnamed unnamed = blocks.unnamed(static_cast<size_t>(limit));
    figures[0] = named + unnamed.bytes;
    figures[1] = named;
    figures[2] = unnamed.blocks;
    figures[3] = static_cast<int64_t>(unnamed.largest.size());
    for (const Block& block : unnamed.largest) {
      *largest++ = static_cast<int64_t>(block.key);
      *largest++ = block.size;
      *largest++ = block.birth;
    }
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

// See prepare_births. `folders` are separated by NUL.
TL_EXPORT int tl_prepare_births(const char32_t* folders, int64_t length, int least_frames) {
  return prepare_births(folders, length, least_frames);
}

TL_EXPORT void tl_switch_births(int on) {
  switch_births(on != 0);
}

TL_EXPORT void tl_births(const uint64_t* addresses, int64_t length, int32_t* births) {
  for (int64_t index = 0; index < length; ++index) {
    births[index] = birth_of(static_cast<uintptr_t>(addresses[index]));
  }
}

// Gives the text of a birth (see Lines), which is never released; null where there is none.
TL_EXPORT const char32_t* tl_birth_line(int32_t number, int64_t* length) {
  const std::u32string* const text = g_lines.text(number);
  *length = text == nullptr ? 0 : static_cast<int64_t>(text->size());
  return text == nullptr ? nullptr : text->data();
}

// Failures. Gives how many requests failed so far, and size and birth of the last one.
TL_EXPORT void tl_failure(int64_t* figures) {
  const Holding holding(g_failure_lock);
  figures[0] = g_failure.count;
  figures[1] = g_failure.size;
  figures[2] = g_failure.birth;
}

// Recording. The code is of the function that calls modules (null: modules are not told), and is
// kept alive by the caller.
TL_EXPORT void tl_module_call(PyObject* code) {
  g_module_call.store(reinterpret_cast<uintptr_t>(code), std::memory_order_relaxed);
}

struct Hooks {
  void (*op_begins)(const char*, int64_t, uint64_t);
  void (*op_ends)();
  void (*node_begins)(const char*, int64_t, uint64_t);
  void (*node_ends)();
  void (*gradient)(const void*, const void*);
  uint64_t (*next_node)();
};

TL_EXPORT Hooks* tl_hooks() {
  static Hooks hooks = {
      &op_begins, &op_ends, &node_begins, &node_ends, &gradient_known, nullptr};
  return &hooks;
}

TL_EXPORT void tl_hooks_connected() {
  g_next_node.store(tl_hooks()->next_node);
}

// Writes where the recording is; 1 when there is no memory for it.
TL_EXPORT int tl_record_begin(int64_t limit, Span** begun) {
  try {
    *begun = begin_span(limit);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

TL_EXPORT int tl_is_recording() {
  return g_recording.load(std::memory_order_relaxed);
}

// 1 when there is no memory for the rows; the recording ends all the same.
TL_EXPORT int tl_record_read(Span* span, int end) {
  const Holding holding(g_log.lock);
  int failed = 0;
  try {
    read_span(*span);
  } catch (const std::bad_alloc&) {
    failed = 1;
  }
  if (end) {
    end_span(*span);
  }
  return failed;
}

// `which` 0: the rows; 1: what was resident at the highest instant among the dropped.
TL_EXPORT void tl_record_look(const Span* span, int which, const void** columns, int64_t* figures) {
  const Rows& rows = which == 0 ? span->rows : span->dropped;
  const void* all[] = {
      rows.kind.data(), rows.address.data(), rows.size.data(), rows.time.data(),
      rows.stack.data(), rows.context.data(), rows.birth.data(), rows.pair.data(),
      rows.owner.data()};
  std::copy(std::begin(all), std::end(all), columns);
  figures[0] = static_cast<int64_t>(rows.kind.size());
  figures[1] = span->lost;
  figures[2] = g_stacks.lost;
  figures[3] = span->thread;
}

// Has `namer` called on the main thread when backward begins from now on, see wishes.hpp. The
// caller keeps it alive for good.
TL_EXPORT void tl_name_at_backward(PyObject* namer) {
  g_modules_named.store(0, std::memory_order_relaxed);
  g_passes.store(0, std::memory_order_relaxed);
  g_namer.store(namer, std::memory_order_relaxed);
}

TL_EXPORT void tl_record_mark(int64_t number) {
  record_mark(number);
}

// Gives number and row of each mark, one after the other, and how many numbers that is.
TL_EXPORT const int64_t* tl_record_marks(const Span* span, int64_t* length) {
  *length = static_cast<int64_t>(span->rows.marks.size());
  return span->rows.marks.data();
}

// Ends the recording, unless it was read to its end, and forgets it.
TL_EXPORT void tl_record_end(Span** begun) {
  if (*begun != nullptr) {
    {
      const Holding holding(g_log.lock);
      end_span(**begun);
    }
    delete *begun;
    *begun = nullptr;
  }
}

// The tables that the rows' numbers stand for. They only grow: what is read stays true.
TL_EXPORT int64_t tl_stack(int32_t number, int64_t* length, int32_t* frames, int64_t most) {
  const Holding holding(g_stacks.lock);
  if (number < 0 || number >= g_stacks.count()) {
    return 0;
  }
  const int64_t begin = g_stacks.starts()[number];
  const int64_t end = number + 1 < g_stacks.count()
      ? g_stacks.starts()[number + 1] : static_cast<int64_t>(g_stacks.frames().size());
  *length = end - begin;
  std::memcpy(
      frames, &g_stacks.frames()[begin],
      std::min(*length, most) * static_cast<int64_t>(sizeof(StackFrame)));
  return 1;
}

TL_EXPORT int tl_context(int32_t number, int32_t* key) {
  const Holding holding(g_contexts.lock);
  if (number < 0 || static_cast<size_t>(number) >= g_contexts.keys().size()) {
    return 0;
  }
  std::memcpy(key, &g_contexts.keys()[number], sizeof(ContextKey));
  return 1;
}

TL_EXPORT const char* tl_op_name(int32_t number) {
  const std::string* const text = g_op_names.text(number);
  return text == nullptr ? nullptr : text->c_str();
}

// Gives the address of a module that was met, and its type's name.
TL_EXPORT uint64_t tl_module(int32_t number, const char** type) {
  const Holding holding(g_modules.lock);
  if (number < 0 || static_cast<size_t>(number) >= g_modules.met().size()) {
    return 0;
  }
  *type = g_modules.met()[number].name.c_str();
  return g_modules.met()[number].address;
}

// Blocks that live. Both lists are released by whoever asked; null when there is no memory.
TL_EXPORT void tl_set_era(int32_t era) {
  g_era.store(era, std::memory_order_relaxed);
}

TL_EXPORT Living* tl_living(int32_t since) {
  try {
    return list_living(since);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

TL_EXPORT int64_t tl_living_look(const Living* living, const void** columns) {
  const void* all[] = {
      living->address.data(), living->size.data(), living->birth.data(), living->era.data()};
  std::copy(std::begin(all), std::end(all), columns);
  return static_cast<int64_t>(living->address.size());
}

TL_EXPORT void tl_living_release(Living* living) {
  delete living;
}

TL_EXPORT Totals* tl_totals() {
  try {
    return sum_by_birth();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

TL_EXPORT int64_t tl_totals_look(const Totals* totals, const void** columns) {
  const void* all[] = {totals->birth.data(), totals->blocks.data(), totals->bytes.data()};
  std::copy(std::begin(all), std::end(all), columns);
  return static_cast<int64_t>(totals->birth.size());
}

TL_EXPORT void tl_totals_release(Totals* totals) {
  delete totals;
}
