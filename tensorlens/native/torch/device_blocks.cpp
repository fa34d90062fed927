// Blocks of accelerators' allocators, each with the era and the line of its allocation. An era is
// the number of steps begun so far in all followed loops (frameworks/host/loop_steps.py converts it
// to a loop's own step).
//
// torch's caching allocators report each block that they allocate or free to a function of libc10,
// for torch's own profiler (c10::reportMemoryUsageToProfiler, called in alloc_found_block and free
// of c10/cuda/CUDACachingAllocator.cpp and c10/xpu/XPUCachingAllocator.cpp). It is called on all
// threads, whether a profiler runs or not. In the libraries that import it, our function replaces
// it for good, and calls it.
//
// Reports come while an allocator's lock is held, with or without the GIL: nothing here waits for
// either.

#include <ATen/record_function.h>
#include <c10/core/Allocator.h>

#include "alloc_sites.hpp"
#include "columns.hpp"
#include "device_levels.hpp"
#include "imports.hpp"

#include <atomic>
#include <cstring>
#include <memory>

#include <pthread.h>

namespace {

// Returns type and index of a device as one number, at least 1. ROCm's allocator reports devices
// as HIP, which torch shows as CUDA.
uintptr_t device_number(c10::Device device) {
  const auto type = device.type() == c10::DeviceType::HIP ? c10::DeviceType::CUDA : device.type();
  return (static_cast<uintptr_t>(type) + 1) << 8 | static_cast<uint8_t>(device.index());
}

// The era of blocks that were allocated before any loop was followed.
constexpr int32_t kBeforeFirst = -1;

struct DeviceBlock {
  uintptr_t key;
  int64_t size;
  int32_t birth, era;
  int64_t device;
};

struct Blocks {
  SpinLock lock;
  Table<DeviceBlock> blocks;
};

Blocks& g_blocks = *new Blocks;
std::atomic<int32_t> g_era{0};
std::atomic<bool> g_follows{false};

void take_in(uintptr_t address, int64_t size, uintptr_t device, int32_t birth) {
  const Holding holding(g_blocks.lock);
  if (DeviceBlock* const block = g_blocks.blocks.put(address)) {
    const int32_t era = g_era.load(std::memory_order_relaxed);
    *block = DeviceBlock{address, size, birth, era, static_cast<int64_t>(device)};
  }
}

void take_out(uintptr_t address) {
  const Holding holding(g_blocks.lock);
  DeviceBlock block;
  g_blocks.blocks.take(address, &block);
}

// A thread that has just made the first gradient of backward(), and the line of that call.
struct PassStart {
  uintptr_t key;
  int32_t birth;
};

struct PassStarts {
  SpinLock lock;
  Table<PassStart> threads;
};

PassStarts& g_pass_starts = *new PassStarts;

// The current thread; its address identifies it.
struct StartingThread {
  bool begins = false;

  void begin(int32_t birth) {
    begins = true;
    const Holding holding(g_pass_starts.lock);
    if (PassStart* const start = g_pass_starts.threads.put(key())) {
      start->birth = birth;
    }
  }

  void end() {
    if (begins) {
      begins = false;
      PassStart start;
      const Holding holding(g_pass_starts.lock);
      g_pass_starts.threads.take(key(), &start);
    }
  }

  ~StartingThread() {
    end();
  }

 private:
  uintptr_t key() const {
    return reinterpret_cast<uintptr_t>(this);
  }
};

alignas(16) thread_local StartingThread t_thread;

// backward() makes the first gradient by aten::ones_like, and then other threads run the pass.
std::unique_ptr<at::ObserverContext> note_pass_start(const at::RecordFunction& function) {
  const char* const name = function.name();
  if (std::strcmp(name, "aten::ones_like") == 0) {
    const int32_t birth = birth_here().line;
    if (birth != kNoBirth) {
      t_thread.begin(birth);
    }
    // aten::ones_like itself calls these operators
  } else if (
      t_thread.begins && std::strcmp(name, "aten::empty_like") != 0 &&
      std::strcmp(name, "aten::empty_strided") != 0 && std::strcmp(name, "aten::fill_") != 0) {
    t_thread.end();
  }
  return nullptr;
}

// Returns the line of the backward pass if only one may be running.
int32_t birth_of_pass() {
  int32_t birth = kNoBirth;
  const Holding holding(g_pass_starts.lock);
  if (g_pass_starts.threads.used() == 1) {
    g_pass_starts.threads.each([&](const PassStart& start) { birth = start.birth; });
  }
  return birth;
}

int32_t birth_now() {
  const int32_t here = birth_here().line;
  // autograd's own threads run no Python code
  return here != kNoBirth || t_thread.begins ? here : birth_of_pass();
}

void report(void* data, int64_t size, size_t allocated, size_t reserved, c10::Device device) {
  note_level(device, allocated);
  if (g_follows.load(std::memory_order_relaxed) && data != nullptr && !device.is_cpu()) {
    if (size > 0) {
      take_in(reinterpret_cast<uintptr_t>(data), size, device_number(device), birth_now());
    } else if (size < 0) {
      take_out(reinterpret_cast<uintptr_t>(data));
    }
  }
  c10::reportMemoryUsageToProfiler(data, size, allocated, reserved, device);
}

// Makes all libraries report here; returns their number.
int64_t connect_libraries() {
  return replace_import(
      reinterpret_cast<void*>(&c10::reportMemoryUsageToProfiler), reinterpret_cast<void*>(&report));
}

void lock_all() {
  g_blocks.lock.lock();
  g_pass_starts.lock.lock();
  lock_births();
}

void unlock_all() {
  unlock_births();
  g_pass_starts.lock.unlock();
  g_blocks.lock.unlock();
}

at::CallbackHandle g_callback = at::INVALID_CALLBACK_HANDLE;
int g_followers = 0;

}  // namespace

// Starts keeping peaks. Returns the number of libraries that report here; 0 if levels are unknown.
TL_EXPORT int64_t tl_levels_connect() {
  return kReadsLevels ? connect_libraries() : 0;
}

// Writes the 3 figures of read_level(); returns whether torch tells them.
TL_EXPORT int tl_levels_read(int type, int index, int64_t* figures) {
  const c10::Device device(
      static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
  return read_level(device, figures) ? 1 : 0;
}

// tl_devices_follow and tl_devices_leave are called with the GIL held, so one after the other.
// Returns the number of libraries that report here; if it is 0, nothing is followed.
TL_EXPORT int64_t tl_devices_follow() {
  // a fork during a change would leave a locked lock to the child
  static const int prepared = pthread_atfork(&lock_all, &unlock_all, &unlock_all);
  (void)prepared;
  const int64_t libraries = connect_libraries();
  if (libraries > 0 && g_followers++ == 0) {
    g_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(note_pass_start).scopes({at::RecordScope::FUNCTION}));
    g_follows.store(true);
  }
  return libraries;
}

TL_EXPORT void tl_devices_leave() {
  if (--g_followers == 0) {
    g_follows.store(false);
    at::removeCallback(g_callback);
    {
      const Holding holding(g_blocks.lock);
      g_blocks.blocks.release();
    }
    // threads that ran no further operator are still in it
    const Holding holding(g_pass_starts.lock);
    g_pass_starts.threads.release();
  }
}

// Adds existing blocks, so that their release is seen.
TL_EXPORT void tl_devices_adopt(
    const uint64_t* addresses, const int64_t* sizes, int64_t length, int64_t device) {
  const Holding holding(g_blocks.lock);
  for (int64_t index = 0; index < length; ++index) {
    const auto address = static_cast<uintptr_t>(addresses[index]);
    if (address != 0 && g_blocks.blocks.find(address) == nullptr) {
      if (DeviceBlock* const block = g_blocks.blocks.put(address)) {
        *block = DeviceBlock{address, sizes[index], kNoBirth, kBeforeFirst, device};
      }
    }
  }
}

TL_EXPORT void tl_devices_era(int32_t era) {
  g_era.store(era, std::memory_order_relaxed);
}

// Returns address, size, birth, era and device of the blocks of era `since` or later.
TL_EXPORT Columns* tl_devices_living(int32_t since) {
  return listed<ColumnsOf<uint64_t, int64_t, int32_t, int32_t, int64_t>>([&](auto& list) {
    const Holding holding(g_blocks.lock);
    g_blocks.blocks.each([&](const DeviceBlock& block) {
      if (block.era >= since) {
        list.add(block.key, block.size, block.birth, block.era, block.device);
      }
    });
  });
}
