"""Lists what the installed TensorFlow can measure, without making its devices.

Run as a program it prints that as JSON: an import of TensorFlow takes seconds and talks a lot.
"""

from __future__ import annotations

import json
import sys

import tensorflow

from tensorlens.guards import reason
from tensorlens.native.build import origin


def take() -> dict[str, object]:
    """Return what there is; native parts are built if they were not yet.

    ``version``, ``source`` and ``precision`` of the host counter, ``figures`` that it has,
    ``native`` (whether the allocator is tapped) and ``fallback`` (why it is not), ``unread`` and
    ``not_followed`` (why tensors are read from Python, and why nodes have no lines; None where they
    are), ``gpu`` (``CUDA``, ``ROCm`` or None) and ``origin`` of the native
    parts.
    """
    from tensorlens.frameworks.tensorflow import cpu
    from tensorlens.frameworks.tensorflow.census import tensor_reader
    from tensorlens.frameworks.tensorflow.cpu import TAP
    from tensorlens.frameworks.tensorflow.hooks import not_followed

    counter = cpu.cpu_counter()
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
        "unread": tensor_reader.fallback_reason(),
        "not_followed": not_followed(),
        "gpu": gpu,
        "origin": origin(TAP),
    }


def _answer() -> dict[str, object]:
    """Return :func:`take`, or under ``failure`` the one line on what we could not do here."""
    try:
        return take()
    except Exception as error:
        return {"version": str(tensorflow.__version__), "failure": reason(error)}


if __name__ == "__main__":
    # apart from what TensorFlow itself prints
    sys.stdout.write(f"\n{json.dumps(_answer())}\n")
