// Bytes allocated on each accelerator, and their peak since the last read.
//
// torch's own peak is shared: a reset clears it for everybody. And it comes to Python with some 200
// other numbers in dictionaries, which takes 10 microseconds.

#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <atomic>

#include <torch/csrc/api/include/torch/version.h>
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
#include <c10/core/CachingDeviceAllocator.h>
#define TL_HAS_DEVICE_ALLOCATOR
#endif

namespace {

#ifdef TL_HAS_DEVICE_ALLOCATOR
constexpr bool kReadsLevels = true;
#else
constexpr bool kReadsLevels = false;
#endif

constexpr int kMaxDevices = 128;
// [0]: CUDA and ROCm, [1]: XPU
std::atomic<int64_t> g_peaks[2][kMaxDevices];

// Returns nullptr for devices whose peaks are not kept.
std::atomic<int64_t>* peak_of(c10::Device device) {
  if (device.index() < 0 || device.index() >= kMaxDevices) {
    return nullptr;
  }
  switch (device.type()) {
    case c10::DeviceType::CUDA:
    case c10::DeviceType::HIP: return &g_peaks[0][device.index()];
    case c10::DeviceType::XPU: return &g_peaks[1][device.index()];
    default: return nullptr;
  }
}

void raise(std::atomic<int64_t>& peak, int64_t level) {
  int64_t seen = peak.load(std::memory_order_relaxed);
  while (seen < level && !peak.compare_exchange_weak(seen, level, std::memory_order_relaxed)) {
  }
}

void note_level(c10::Device device, size_t allocated) {
  if (std::atomic<int64_t>* const peak = peak_of(device)) {
    raise(*peak, static_cast<int64_t>(allocated));
  }
}

// Writes the allocated bytes, their peak since the last call, and the reserved bytes. Returns false
// if torch does not tell.
bool read_level(c10::Device device, int64_t* figures) {
#ifdef TL_HAS_DEVICE_ALLOCATOR
  using c10::CachingAllocator::StatType;
  constexpr auto kAll = static_cast<size_t>(StatType::AGGREGATE);
  std::atomic<int64_t>* const peak = peak_of(device);
  try {
    auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
    if (peak == nullptr || allocator == nullptr || !allocator->initialized()) {
      return false;
    }
    const int64_t seen = peak->exchange(0, std::memory_order_relaxed);
    const auto stats = allocator->getDeviceStats(device.index());
    figures[0] = stats.allocated_bytes[kAll].current;
    figures[1] = std::max(seen, figures[0]);
    figures[2] = stats.reserved_bytes[kAll].current;
    raise(*peak, figures[0]);
    return true;
  } catch (...) {
    // a lost context, a device that does not exist: torch's own functions say so
    return false;
  }
#else
  return false;
#endif
}

}  // namespace
