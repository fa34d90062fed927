// The random generator of a device: a seed and an offset, as Philox has; it draws no numbers.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <cstring>

namespace {

struct PhiloxGenerator final : public c10::GeneratorImpl {
  PhiloxGenerator()
      : c10::GeneratorImpl(
            c10::Device(c10::DeviceType::CUDA, 0), c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  // on the CPU, in the form of CUDA's generator: eight bytes of seed, then eight of offset
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto bytes = at::detail::empty_cpu(
        {16}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
    auto* data = static_cast<char*>(bytes.mutable_data_ptr());
    std::memcpy(data, &seed_, 8);
    std::memcpy(data + 8, &offset_, 8);
    return bytes.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& bytes) override {
    // a fake tensor has no bytes, and nothing depends on them
    if (bytes.key_set().has(c10::DispatchKey::Python)) return;
    TORCH_CHECK(
        bytes.device().is_cpu() && bytes.dtype() == at::kByte,
        "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(bytes.numel() == 16 || bytes.numel() == 8, "RNG state is wrong size");
    const auto* data = static_cast<const char*>(bytes.data());
    std::memcpy(&seed_, data, 8);
    offset_ = 0;
    if (bytes.numel() == 16) std::memcpy(&offset_, data + 8, 8);
  }

  // copies, since no graph is captured that would need a shared state
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& other) override {
    seed_ = other->current_seed();
    offset_ = other->get_offset();
  }
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override { return clone(); }

 private:
  PhiloxGenerator* clone_impl() const override {
    auto* copy = new PhiloxGenerator();
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }

  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

}  // namespace
