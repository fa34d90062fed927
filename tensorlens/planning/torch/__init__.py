"""A training step on a card that is not there: fake tensors on a CUDA device made of numbers."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "device": ("load_library", "measure_with", "prepare"),
        "device.bindings": ("Bindings",),
        "memory": ("Temporaries",),
        "memory.attention": (),
        "memory.cublas": ("cublas_workspace",),
        "memory.cudnn": ("rnn_reserve",),
        "memory.host_kernels": (),
        "memory.kernel_overrides": (),
        "options": ("freed_before_backward",),
        "options.models": ("Autocast", "Stage"),
        "options.training": ("Accumulate", "LoaderWatch", "PrefetchFactor"),
        "patches": ("compiler_patches", "loader_patches", "thread_modes"),
        "stacks": ("ProgramStacks", "node_stacks"),
        "step_facts": ("StepWatch",),
        "tracker": ("Tracker",),
        "values": ("value_patches",),
    },
)
