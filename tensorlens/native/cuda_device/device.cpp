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

// once torch is imported: what a build with CUDA has registered meanwhile gives way
TENSORLENS_EXPORT void tensorlens_take_over() {
  tensorlens::register_recurrent();
  const c10::impl::DeviceGuardImplRegistrar again(c10::DeviceType::CUDA, new tensorlens::Guard());
}

TENSORLENS_EXPORT long long tensorlens_current_stream() { return tensorlens::current_stream; }

TENSORLENS_EXPORT void tensorlens_set_stream(long long stream) {
  tensorlens::current_stream = stream;
}

// the next generator that torch asks for is the device's own, not a new one
TENSORLENS_EXPORT void tensorlens_hand_out_default_generator() {
  tensorlens::default_generator_wanted = true;
}
