"""A training step on a card that is not there: fake tensors on a CUDA device made of numbers."""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "device.stand_in": ("load_library", "measure_with", "prepare"),
        "device.bindings": ("Bindings",),
        "memory.cublas": ("cublas_workspace",),
        "memory.cudnn": ("rnn_reserve",),
        "memory.cpu_scratch": (),
        "memory.cuda_scratch": ("CudaScratch",),
        "operators.attention": (),
        "operators.calibration": ("calibrate",),
        "options.models": ("Autocast", "Stage"),
        "options.training": ("Accumulate", "LoaderWatch", "PrefetchFactor"),
        "patches": ("compiler_patches", "loader_patches", "thread_modes"),
        "stacks": ("ProgramStacks", "node_stacks"),
        "step_facts": ("StepWatch",),
        "tracker": ("Tracker",),
        "values.answers": ("value_patches",),
    },
)
