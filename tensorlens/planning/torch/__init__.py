"""A training step without data, on a card that is not there.

``device/`` makes torch see the card, before torch is imported and for the whole process.
``operators/`` has the results of operators on fake tensors and the values that a program reads,
``memory/`` the scratch of kernels. The tracker logs every storage while ``run.py`` runs.
"""

from tensorlens.lazy import attach

attach(
    __name__,
    {
        "device.bindings": ("Bindings",),
        "device.stand_in": ("SINCE", "load_library", "measure_with", "prepare"),
        "memory.cpu_scratch": (),
        "memory.cudnn": ("rnn_reserve",),
        "memory.cuda_scratch": ("CudaScratch", "cublas_workspace"),
        "operators.answers": ("value_patches",),
        "operators.attention": (),
        "options.models": ("Autocast", "Stage"),
        "options.training": ("Accumulate", "PrefetchFactor"),
        "patches": ("program_patches",),
        "run": ("calibrate",),
        "stacks": ("ProgramStacks", "node_stacks"),
        "step_watch": ("LoaderWatch", "StepWatch"),
        "tracker": ("Tracker",),
    },
)
