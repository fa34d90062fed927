// A CUDA device that is not there: what torch's CPU build asks of a CUDA build when tensors say
// they live on "cuda". Nothing is allocated and nothing is computed.

#include "guard.hpp"
#include "hooks.hpp"
#include "recurrent.hpp"

namespace {

[[maybe_unused]] const c10::impl::DeviceGuardImplRegistrar guard_registrar(
    c10::DeviceType::CUDA, new tensorlens::Guard());

[[maybe_unused]] const bool hooks_registered = [] {
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks",
      [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
        return std::make_unique<tensorlens::Hooks>();
      },
      // a build with CUDA registers hooks of its own later
      c10::REGISTRY_PREFERRED);
  return true;
}();

}  // namespace

#define TENSORLENS_EXPORT extern "C" __attribute__((visibility("default")))

TENSORLENS_EXPORT void tensorlens_set_device_count(int count) {
  tensorlens::device_count.store(count);
}

// once torch is imported: what a build with CUDA has registered meanwhile gives way
TENSORLENS_EXPORT void tensorlens_take_over() {
  tensorlens::register_recurrent();
  const c10::impl::DeviceGuardImplRegistrar again(c10::DeviceType::CUDA, new tensorlens::Guard());
}

TENSORLENS_EXPORT int tensorlens_device_count() { return tensorlens::device_count.load(); }

TENSORLENS_EXPORT int tensorlens_current_device() { return tensorlens::current_device; }

// gives the device that was current; a negative one changes nothing
TENSORLENS_EXPORT int tensorlens_exchange_device(int device) {
  const int before = tensorlens::current_device;
  if (device >= 0) tensorlens::current_device = static_cast<c10::DeviceIndex>(device);
  return before;
}

TENSORLENS_EXPORT long long tensorlens_current_stream(int device) {
  return tensorlens::current_stream(device);
}

TENSORLENS_EXPORT void tensorlens_set_stream(int device, long long stream) {
  tensorlens::current_stream(device) = stream;
}

// the next generator that torch asks for is the device's own, not a new one
TENSORLENS_EXPORT void tensorlens_hand_out_default_generator() {
  tensorlens::default_generator_wanted = true;
}
