// The blocks that accelerators' allocators have handed out, each with the era and the line that
// made it. An era is how many steps had begun by then, of all loops that are followed
// (frameworks/host/loop_steps.py turns it into a loop's own step).
//
// torch's caching allocators tell each block that they hand out or take back to a function of
// libc10's, for torch's own profiler (c10::reportMemoryUsageToProfiler, called in alloc_found_block
// and free of c10/cuda/CUDACachingAllocator.cpp and c10/xpu/XPUCachingAllocator.cpp). It is called
// on all threads, whether a profiler runs or not. The libraries that import it are given ours,
// which calls it: the entry of their global offset tables is replaced, once and for good.
//
// The reports come with an allocator's lock held, with or without the GIL: nothing here waits for
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

// Type and index of a device in one number, at least 1. ROCm's allocator says HIP of what torch
// shows as CUDA.
uintptr_t number_of(c10::Device device) {
  const auto type = device.type() == c10::DeviceType::HIP ? c10::DeviceType::CUDA : device.type();
  return (static_cast<uintptr_t>(type) + 1) << 8 | static_cast<uint8_t>(device.index());
}

// The era of blocks that were made before someone followed.
constexpr int32_t kBefore = -1;

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

Blocks& g_all = *new Blocks;
std::atomic<int32_t> g_era{0};
std::atomic<bool> g_follows{false};

void take_in(uintptr_t address, int64_t size, uintptr_t device, int32_t birth) {
  const Holding holding(g_all.lock);
  if (DeviceBlock* const block = g_all.blocks.put(address)) {
    const int32_t era = g_era.load(std::memory_order_relaxed);
    *block = DeviceBlock{address, size, birth, era, static_cast<int64_t>(device)};
  }
}

void take_out(uintptr_t address) {
  const Holding holding(g_all.lock);
  DeviceBlock block;
  g_all.blocks.take(address, &block);
}

// Threads that have just made the gradient which backward() starts from, and the line that called
// it.
struct Beginning {
  uintptr_t key;
  int32_t birth;
};

struct Beginnings {
  SpinLock lock;
  Table<Beginning> threads;
};

Beginnings& g_beginnings = *new Beginnings;

// Its address stands for the thread.
struct Thread {
  bool begins = false;

  void begin(int32_t birth) {
    begins = true;
    const Holding holding(g_beginnings.lock);
    if (Beginning* const beginning = g_beginnings.threads.put(key())) {
      beginning->birth = birth;
    }
  }

  void end() {
    if (begins) {
      begins = false;
      Beginning beginning;
      const Holding holding(g_beginnings.lock);
      g_beginnings.threads.take(key(), &beginning);
    }
  }

  ~Thread() {
    end();
  }

 private:
  uintptr_t key() const {
    return reinterpret_cast<uintptr_t>(this);
  }
};

alignas(16) thread_local Thread t_thread;

// backward() makes the gradient that it begins with, and then other threads run the pass.
std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction& function) {
  const char* const name = function.name();
  if (std::strcmp(name, "aten::ones_like") == 0) {
    const int32_t birth = birth_here().line;
    if (birth != kNoBirth) {
      t_thread.begin(birth);
    }
    // aten::ones_like calls these itself
  } else if (
      t_thread.begins && std::strcmp(name, "aten::empty_like") != 0 &&
      std::strcmp(name, "aten::empty_strided") != 0 && std::strcmp(name, "aten::fill_") != 0) {
    t_thread.end();
  }
  return nullptr;
}

// The line of the only pass that may run: several could not be told apart.
int32_t birth_of_pass() {
  int32_t birth = kNoBirth;
  const Holding holding(g_beginnings.lock);
  if (g_beginnings.threads.used() == 1) {
    g_beginnings.threads.each([&](const Beginning& beginning) { birth = beginning.birth; });
  }
  return birth;
}

int32_t birth_now() {
  const int32_t here = birth_here().line;
  // a thread of autograd's runs no Python
  return here != kNoBirth || t_thread.begins ? here : birth_of_pass();
}

void report(void* data, int64_t size, size_t allocated, size_t reserved, c10::Device device) {
  note_level(device, allocated);
  if (g_follows.load(std::memory_order_relaxed) && data != nullptr && !device.is_cpu()) {
    if (size > 0) {
      take_in(reinterpret_cast<uintptr_t>(data), size, number_of(device), birth_now());
    } else if (size < 0) {
      take_out(reinterpret_cast<uintptr_t>(data));
    }
  }
  c10::reportMemoryUsageToProfiler(data, size, allocated, reserved, device);
}

// Has all libraries report here, and gives how many do.
int64_t connect_libraries() {
  return replace_import(
      reinterpret_cast<void*>(&c10::reportMemoryUsageToProfiler), reinterpret_cast<void*>(&report));
}

void lock_all() {
  g_all.lock.lock();
  g_beginnings.lock.lock();
  lock_births();
}

void unlock_all() {
  unlock_births();
  g_beginnings.lock.unlock();
  g_all.lock.unlock();
}

at::CallbackHandle g_callback = at::INVALID_CALLBACK_HANDLE;
int g_followers = 0;

}  // namespace

// Has the levels kept; gives how many libraries report here, 0 where levels cannot be read.
TL_EXPORT int64_t tl_levels_connect() {
  return kReadsLevels ? connect_libraries() : 0;
}

// Writes 3 figures as read_level() does; gives whether it did.
TL_EXPORT int tl_levels_read(int type, int index, int64_t* figures) {
  const c10::Device device(
      static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index));
  return read_level(device, figures) ? 1 : 0;
}

// tl_devices_follow and tl_devices_leave are called with the GIL held, which keeps them apart. Gives
// how many libraries report here; where none does, nobody is to follow.
TL_EXPORT int64_t tl_devices_follow() {
  // a fork in the middle of a change would leave the child a lock that nobody opens
  static const int prepared = pthread_atfork(&lock_all, &unlock_all, &unlock_all);
  (void)prepared;
  const int64_t libraries = connect_libraries();
  if (libraries > 0 && g_followers++ == 0) {
    g_callback = at::addGlobalCallback(
        at::RecordFunctionCallback(op_begins).scopes({at::RecordScope::FUNCTION}));
    g_follows.store(true);
  }
  return libraries;
}

TL_EXPORT void tl_devices_leave() {
  if (--g_followers == 0) {
    g_follows.store(false);
    at::removeCallback(g_callback);
    {
      const Holding holding(g_all.lock);
      g_all.blocks.release();
    }
    // of a thread that ran no further operator
    const Holding holding(g_beginnings.lock);
    g_beginnings.threads.release();
  }
}

// Takes in blocks that were made before, so that it is seen when they go.
TL_EXPORT void tl_devices_adopt(
    const uint64_t* addresses, const int64_t* sizes, int64_t length, int64_t device) {
  const Holding holding(g_all.lock);
  for (int64_t index = 0; index < length; ++index) {
    const auto address = static_cast<uintptr_t>(addresses[index]);
    if (address != 0 && g_all.blocks.find(address) == nullptr) {
      if (DeviceBlock* const block = g_all.blocks.put(address)) {
        *block = DeviceBlock{address, sizes[index], kNoBirth, kBefore, device};
      }
    }
  }
}

TL_EXPORT void tl_devices_era(int32_t era) {
  g_era.store(era, std::memory_order_relaxed);
}

// Address, size, birth, era and device of the blocks of the era `since` or later.
TL_EXPORT Columns* tl_devices_living(int32_t since) {
  return listed<ColumnsOf<uint64_t, int64_t, int32_t, int32_t, int64_t>>([&](auto& list) {
    const Holding holding(g_all.lock);
    g_all.blocks.each([&](const DeviceBlock& block) {
      if (block.era >= since) {
        list.add(block.key, block.size, block.birth, block.era, block.device);
      }
    });
  });
}
