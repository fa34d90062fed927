// An accelerator that is none: its memory is the host's, and its allocator reports each block to
// torch as those of CUDA and XPU do.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>

#define TL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Block {
  int64_t requested, size;
  int16_t device;
};

constexpr int64_t kRounding = 512;

std::mutex g_lock;
std::map<void*, Block> g_blocks;
int64_t g_level[8];
std::atomic<int16_t> g_device{-1};
c10::Allocator* g_host = nullptr;

void say(void* data, int64_t size, int16_t device) {
  g_level[device] += size;
  c10::reportMemoryUsageToProfiler(
      data, size, static_cast<size_t>(g_level[device]), 0,
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)));
}

void take_back(void* data) {
  {
    const std::lock_guard<std::mutex> holding(g_lock);
    const auto found = g_blocks.find(data);
    if (found == g_blocks.end()) {
      return;
    }
    say(data, -found->second.size, found->second.device);
    g_blocks.erase(found);
  }
  std::free(data);
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    const int16_t device = g_device.load();
    if (device < 0 || size == 0) {
      return g_host->allocate(size);
    }
    void* const data = std::aligned_alloc(64, (size + 63) / 64 * 64);
    const auto requested = static_cast<int64_t>(size);
    const int64_t rounded = (requested + kRounding - 1) / kRounding * kRounding;
    const std::lock_guard<std::mutex> holding(g_lock);
    g_blocks[data] = Block{requested, rounded, device};
    say(data, rounded, device);
    return {data, data, &take_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    default_copy_data(to, from, size);
  }
};

// What torch is asked for statistics of the devices; twice as much is reserved as handed out.
struct Statistics final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t) override {
    return {};
  }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool initialized() override {
    return true;
  }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    TORCH_CHECK(device < 8, "invalid device");
    const std::lock_guard<std::mutex> holding(g_lock);
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = g_level[device];
    stats.reserved_bytes[0].current = 2 * g_level[device];
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
};

}  // namespace

TL_EXPORT void tell_statistics() {
  c10::SetAllocator(c10::DeviceType::CUDA, new Statistics);
}

TL_EXPORT void tell_no_statistics() {
  c10::SetAllocator(c10::DeviceType::CUDA, nullptr);
}

TL_EXPORT void stand_in() {
  static auto* const allocator = new Allocator;
  g_host = c10::GetCPUAllocator();
  c10::SetCPUAllocator(allocator, 0xFF);
}

TL_EXPORT void stand_down() {
  c10::SetCPUAllocator(g_host, 0xFF);
}

// New tensors of the host are of this device from now on; below 0 they are the host's.
TL_EXPORT void choose(int16_t device) {
  g_device.store(device);
}

// Writes address, requested size, size and device of up to `most` blocks; gives how many there are.
TL_EXPORT int64_t list(int64_t* rows, int64_t most) {
  const std::lock_guard<std::mutex> holding(g_lock);
  int64_t row = 0;
  for (const auto& [data, block] : g_blocks) {
    if (row < most) {
      int64_t* const at = rows + 4 * row;
      at[0] = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data));
      at[1] = block.requested;
      at[2] = block.size;
      at[3] = block.device;
    }
    ++row;
  }
  return row;
}

// Makes a block on a thread that runs no Python, as autograd's do.
TL_EXPORT void* hand_out(int64_t size) {
  void* data = nullptr;
  std::thread([&] {
    data = c10::GetCPUAllocator()->allocate(static_cast<size_t>(size)).release_context();
  }).join();
  return data;
}

TL_EXPORT void hand_back(void* data) {
  take_back(data);
}
