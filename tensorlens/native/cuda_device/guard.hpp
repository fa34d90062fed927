// Devices, streams and events: all of them only numbers.

#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

namespace tensorlens {

constexpr int MOST_DEVICES = 64;
constexpr int STREAMS_PER_POOL = 32;  // c10/cuda/CUDAStream.cpp, kStreamsPerPool

inline std::atomic<int> device_count{1};
inline thread_local c10::DeviceIndex current_device = 0;

inline long long& current_stream(int device) {
  static thread_local std::array<long long, MOST_DEVICES> streams{};
  return streams.at(static_cast<size_t>(device < 0 ? current_device : device));
}

// As c10/cuda/CUDAStream.cpp numbers them: 0 is the default stream; a stream of a pool has its
// place in the pool, its priority and a last bit that is set. Each pool is handed out in turn.
inline c10::StreamId stream_from_pool(int device, bool high_priority) {
  static std::array<std::array<std::atomic<unsigned>, MOST_DEVICES>, 2> turns{};
  const unsigned turn = turns[high_priority ? 1 : 0].at(static_cast<size_t>(device))++;
  const c10::StreamId place = turn % STREAMS_PER_POOL;
  const c10::StreamId kind = high_priority ? 2 : 1;
  return (place << 5) | (kind << 1) | 1;
}

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType CUDA = c10::DeviceType::CUDA;

  static c10::DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  static c10::Stream stream(c10::DeviceIndex device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(CUDA, device), id);
  }

  c10::DeviceType type() const override { return CUDA; }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(device_count.load());
  }

  c10::Device getDevice() const override { return c10::Device(CUDA, current_device); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = current_device;
    setDevice(device);
    return c10::Device(CUDA, before);
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(
        index_of(device) < deviceCount(),
        "CUDA error: invalid device ordinal (", device, " of ", device_count.load(), ")");
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = index_of(device);
  }

  c10::Stream getStream(c10::Device device) const override {
    return stream(index_of(device), current_stream(index_of(device)));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return stream(index_of(device), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return stream(index_of(device), stream_from_pool(index_of(device), high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto& now = current_stream(index_of(next.device()));
    const auto before = stream(index_of(next.device()), now);
    now = next.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}

  void record(
      void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  // programs divide by it: never zero
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1e-3; }
};

}  // namespace tensorlens
