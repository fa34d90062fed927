// What ATen's CPU code asks about CUDA.

#pragma once

#include <ATen/detail/CUDAHooksInterface.h>

#include <c10/core/CPUAllocator.h>

#include <array>
#include <mutex>

#include "generator.hpp"
#include "guard.hpp"

namespace tensorlens {

constexpr long CUDNN_VERSION = 91002;
inline thread_local bool default_generator_wanted = false;

// without `override` is what torch 2.7 to 2.9 do not ask yet
struct Hooks final : public at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }

  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasMAGMA() const override { return true; }
  bool hasCuSOLVER() const override { return true; }
  bool hasCuBLASLt() const override { return true; }

  bool hasCuDNN() const override { return true; }
  bool compiledWithCuDNN() const override { return hasCuDNN(); }
  long versionCuDNN() const override { return CUDNN_VERSION; }
  long versionRuntimeCuDNN() const { return CUDNN_VERSION; }
  long versionCuDNNFrontend() const { return 11200; }
  long versionCUDART() const override { return 12080; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return hasCuDNN(); }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return hasCuDNN(); }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return hasCuDNN(); }
  bool supportsBFloat16RNNWithCuDNN() const { return hasCuDNN(); }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }  // CUDNN_BN_MIN_EPSILON
  std::string showConfig() const override { return ""; }

  c10::DeviceIndex deviceCount() const override { return guard.deviceCount(); }
  int getNumGPUs() const override { return guard.deviceCount(); }
  c10::DeviceIndex current_device() const override { return tensorlens::current_device; }
  c10::DeviceIndex getCurrentDevice() const override { return tensorlens::current_device; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    guard.setDevice(c10::Device(c10::DeviceType::CUDA, device));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = tensorlens::current_device;
    if (device >= 0) setCurrentDevice(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(c10::DeviceIndex) const override {}

  // whether a tensor is pinned is noted in Python
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetDefaultCPUAllocator();
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return c10::Device(c10::DeviceType::CUDA, tensorlens::current_device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    static std::mutex mutex;
    static auto* generators = new std::array<at::Generator, MOST_DEVICES>();
    const std::lock_guard<std::mutex> lock(mutex);
    auto& generator = generators->at(checked(device));
    if (!generator.defined()) generator = make(device);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    if (!default_generator_wanted) return make(device);
    default_generator_wanted = false;
    return getDefaultGenerator(device);
  }

 private:
  static size_t checked(c10::DeviceIndex device) {
    const auto index = device < 0 ? tensorlens::current_device : device;
    TORCH_CHECK(index < device_count.load(), "The device_index is invalid.");
    return static_cast<size_t>(index);
  }
  static at::Generator make(c10::DeviceIndex device) {
    return at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>(
        c10::make_intrusive<PhiloxGenerator>(static_cast<c10::DeviceIndex>(checked(device)))));
  }

  Guard guard;
};

}  // namespace tensorlens
