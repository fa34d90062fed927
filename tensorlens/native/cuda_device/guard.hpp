// The only device, its streams and events: they are mere numbers.

#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

namespace {

constexpr int kStreamsPerPool = 32;  // c10/cuda/CUDAStream.cpp, kStreamsPerPool

thread_local long long t_current_stream = 0;

// As c10/cuda/CUDAStream.cpp numbers them: 0 is the default stream; a stream of a pool has its
// place in the pool, its priority and a last bit that is set. A pool's streams are used in turn.
c10::StreamId stream_from_pool(bool high_priority) {
  static std::array<std::atomic<unsigned>, 2> next_places{};
  const unsigned count = next_places.at(high_priority ? 1 : 0)++;
  const c10::StreamId place = count % kStreamsPerPool;
  const c10::StreamId kind = high_priority ? 2 : 1;
  return (place << 5) | (kind << 1) | 1;
}

struct DeviceGuard final : public c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType kCuda = c10::DeviceType::CUDA;

  static c10::Stream stream(c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kCuda, 0), id);
  }

  c10::DeviceType type() const override { return kCuda; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }

  c10::Device getDevice() const override { return c10::Device(kCuda, 0); }
  c10::Device exchangeDevice(c10::Device device) const override {
    setDevice(device);
    return getDevice();
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < 1, "CUDA error: invalid device ordinal (", device, " of 1)");
  }
  void uncheckedSetDevice(c10::Device) const noexcept override {}

  c10::Stream getStream(c10::Device) const override { return stream(t_current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool high_priority) const override {
    return stream(stream_from_pool(high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromGlobalPool(device, priority < 0);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const auto before = stream(t_current_stream);
    t_current_stream = next.id();
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
  // not zero, as programs divide by it
  double elapsedTime(void*, void*, const c10::DeviceIndex) const override { return 1e-3; }
};

}  // namespace
