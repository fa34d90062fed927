"""Finds out which memory the installed TensorFlow can measure, without making its devices."""

from __future__ import annotations

import tensorflow

from tensorlens.frameworks.diagnosis import Finding, counter_finding, native_counter, part
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census import tensor_reader
from tensorlens.frameworks.tensorflow.cpu import TAP
from tensorlens.frameworks.tensorflow.hooks import not_followed
from tensorlens.native.build import origin


def diagnose() -> list[Finding]:
    """Return the findings on TensorFlow; builds native parts that are missing."""
    counter = cpu.cpu_counter()
    is_native = isinstance(counter, cpu.TensorflowAllocator)
    built = tensorflow.sysconfig.get_build_info()
    gpu = "CUDA" if built.get("is_cuda_build") else "ROCm" if built.get("is_rocm_build") else None
    no_gpu = "not in this tensorflow; needs a build for GPUs: tensorflow[and-cuda]"
    unread = tensor_reader.fallback_reason()
    return [
        counter_finding("cpu", counter),
        native_counter(is_native, cpu.fallback_reason(), origin(TAP)),
        part("snapshots", unread, "tensors and variables are read natively"),
        part(
            "graph functions",
            not_followed(),
            "memory of graph nodes goes to the lines that made them",
        ),
        part(
            "gpu",
            None if gpu else no_gpu,
            f"a {gpu} build: allocated and peak from get_memory_info",
        ),
    ]
