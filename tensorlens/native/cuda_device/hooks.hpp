// Answers to what ATen's CPU code asks about CUDA.

#pragma once

#include <ATen/detail/CUDAHooksInterface.h>

#include <c10/core/CPUAllocator.h>

#include "generator.hpp"
#include "guard.hpp"

namespace {

constexpr long kCudnnVersion = 92000;
thread_local bool t_wants_default_generator = false;

// methods without `override` are new in torch 2.10
struct DeviceHooks final : public at::CUDAHooksInterface {
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
  long versionCuDNN() const override { return kCudnnVersion; }
  long versionRuntimeCuDNN() const { return kCudnnVersion; }
  long versionCuDNNFrontend() const { return 11200; }
  long versionCUDART() const override { return 13000; }
  bool supportsDilatedConvolutionWithCuDNN() const override { return hasCuDNN(); }
  bool supportsDepthwiseConvolutionWithCuDNN() const override { return hasCuDNN(); }
  bool supportsBFloat16ConvolutionWithCuDNNv8() const override { return hasCuDNN(); }
  bool supportsBFloat16RNNWithCuDNN() const { return hasCuDNN(); }
  double batchnormMinEpsilonCuDNN() const override { return 0.0; }  // CUDNN_BN_MIN_EPSILON
  std::string showConfig() const override { return ""; }

  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    DeviceGuard().setDevice(c10::Device(c10::DeviceType::CUDA, device));
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    if (device >= 0) setCurrentDevice(device);
    return 0;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }
  void deviceSynchronize(c10::DeviceIndex) const override {}

  // Python code keeps track of pinned tensors
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetDefaultCPUAllocator();
  }
  c10::Device getDeviceFromPtr(void*) const override {
    return c10::Device(c10::DeviceType::CUDA, 0);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    check(device);
    static auto* generator = new at::Generator(at::make_generator<PhiloxGenerator>());
    return *generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    check(device);
    if (!t_wants_default_generator) return at::make_generator<PhiloxGenerator>();
    t_wants_default_generator = false;
    return getDefaultGenerator(device);
  }

 private:
  static void check(c10::DeviceIndex device) {
    TORCH_CHECK(device < 1, "The device_index is invalid.");
  }
};

}  // namespace
