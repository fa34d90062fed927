// A simulated CUDA device: makes torch's CPU build accept tensors that claim to be on "cuda".
// Nothing is allocated and nothing is computed.

#include "exported.hpp"
#include "guard.hpp"
#include "hooks.hpp"
#include "recurrent.hpp"

namespace {

[[maybe_unused]] const c10::impl::DeviceGuardImplRegistrar guard_registrar(
    c10::DeviceType::CUDA, new DeviceGuard());

[[maybe_unused]] const bool hooks_registered = [] {
  at::CUDAHooksRegistry()->Register(
      "CUDAHooks",
      [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
        return std::make_unique<DeviceHooks>();
      },
      // a CUDA build registers its own hooks later
      c10::REGISTRY_PREFERRED);
  return true;
}();

}  // namespace

// To be called after the import of torch: replaces what a CUDA build has registered.
TL_EXPORT void tl_device_take_over() {
  register_recurrent();
  const c10::impl::DeviceGuardImplRegistrar again(c10::DeviceType::CUDA, new DeviceGuard());
}

TL_EXPORT long long tl_device_stream() { return t_current_stream; }

TL_EXPORT void tl_device_set_stream(long long stream) {
  t_current_stream = stream;
}

// The next generator that torch requests will be the device's own, not a new one.
TL_EXPORT void tl_device_use_default_generator() {
  t_wants_default_generator = true;
}
