"""What can be measured with the TensorFlow that is installed, without making its devices."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow

from tensorlens.frameworks import building
from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census import reading
from tensorlens.frameworks.tensorflow.graphs.calls import not_followed


@dataclass(frozen=True, slots=True)
class Inventory:
    """What there is."""

    version: str
    cpu: Counter
    native: bool
    """Whether the CPU allocator is tapped."""
    fallback: str | None
    """Why it is not."""
    unread: str | None
    """Why tensors are read from Python; None where they are read natively."""
    not_followed: str | None
    """Why the lines of graph functions are not known; None where they are."""
    gpu: str | None
    """What this build has for GPUs: ``CUDA``, ``ROCm``; None for nothing."""
    cache: str


def take() -> Inventory:
    """Look at the installed TensorFlow; its native parts are built if they were not yet."""
    counter = cpu.cpu_counter()
    reading.reader()
    built = tensorflow.sysconfig.get_build_info()
    gpu = "CUDA" if built.get("is_cuda_build") else "ROCm" if built.get("is_rocm_build") else None
    return Inventory(
        version=str(tensorflow.__version__),
        cpu=counter,
        native=isinstance(counter, cpu.CpuCounter),
        fallback=cpu.fallback_reason(),
        unread=reading.fallback_reason(),
        not_followed=not_followed(),
        gpu=gpu,
        cache=str(building.cache_folder()),
    )
