// Pinned memory: ordinary memory, of which it is remembered that it was asked for as pinned.

#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <map>
#include <mutex>

namespace tensorlens {

class PinnedBlocks {
 public:
  void add(const void* data, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[reinterpret_cast<uintptr_t>(data)] = size;
  }
  void remove(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_.erase(reinterpret_cast<uintptr_t>(data));
  }
  bool contain(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    const std::lock_guard<std::mutex> lock(mutex_);
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return false;
    --after;
    return address < after->first + after->second;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, size_t> blocks_;
};

// never destroyed: tensors may outlive every other static
inline PinnedBlocks& pinned_blocks() {
  static auto* blocks = new PinnedBlocks();
  return *blocks;
}

struct PinnedAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* data = c10::GetDefaultCPUAllocator()->raw_allocate(size);
    if (data != nullptr) pinned_blocks().add(data, size);
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t count) const override {
    default_copy_data(to, from, count);
  }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    pinned_blocks().remove(data);
    c10::GetDefaultCPUAllocator()->raw_deallocate(data);
  }
};

}  // namespace tensorlens
