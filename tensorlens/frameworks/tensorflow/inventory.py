"""What can be measured with the TensorFlow that is installed, without making its devices.

Run as a program it prints that as JSON: an import of TensorFlow takes seconds and talks a lot.
"""

from __future__ import annotations

import json

import tensorflow

from tensorlens.frameworks import building
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census import reading
from tensorlens.frameworks.tensorflow.graphs.calls import not_followed


def take() -> dict[str, object]:
    """Return what there is; native parts are built if they were not yet.

    ``version``, ``source`` and ``precision`` of the host counter, ``figures`` that it has,
    ``native`` (whether the allocator is tapped) and ``fallback`` (why it is not), ``unread`` and
    ``not_followed`` (why tensors are read from Python, and why nodes have no lines; None where they
    are), ``gpu`` (``CUDA``, ``ROCm`` or None) and ``cache``, where native parts are kept.
    """
    counter = cpu.cpu_counter()
    reading.reader()
    built = tensorflow.sysconfig.get_build_info()
    gpu = "CUDA" if built.get("is_cuda_build") else "ROCm" if built.get("is_rocm_build") else None
    figures = ("allocated", "peak", "reserved")
    return {
        "version": str(tensorflow.__version__),
        "source": counter.source,
        "precision": counter.precision,
        "figures": [each for each in figures if each not in counter.missing],
        "native": isinstance(counter, cpu.CpuCounter),
        "fallback": cpu.fallback_reason(),
        "unread": reading.fallback_reason(),
        "not_followed": not_followed(),
        "gpu": gpu,
        "cache": str(building.cache_folder()),
    }


if __name__ == "__main__":
    print(json.dumps(take()))
