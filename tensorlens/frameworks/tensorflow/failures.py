"""Reads the messages of failed allocations of TensorFlow."""

from __future__ import annotations

import re

from tensorflow.python.framework import errors

from tensorlens.frameworks.base import Request
from tensorlens.frameworks.tensorflow.counters import torch_device_name
from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign

_TENSOR = re.compile(r"shape\[([\d,]*)\] and type (\w+) on (\S+)")
_NODE = re.compile(r"Detected at node (\S+) defined at")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in ([^\n]+)')
_BYTES = re.compile(r"(?:allocate|allocating) (\d+) ?(?:bytes|B)\b")


def failed_request(error: BaseException) -> Request | None:
    """Return the request if ``error`` is a failed allocation, else None.

    The message of a kernel has the shape, type and device of its tensor
    (tensorflow/core/framework/op_kernel.cc, 2.21), which is exact; that of XLA a number of bytes.
    """
    if not issubclass(type(error), errors.ResourceExhaustedError):
        return None
    try:
        text = str(error)
    except Exception:
        # a __str__ of the user's
        return None
    line = " ".join(text.split("\n", 1)[0].split())[:300]
    node = _NODE.search(text)
    op = None if node is None else node[1]
    line_made = None if node is None else _made_at(text)
    match = _TENSOR.search(text)
    if match is not None:
        size: int | None
        try:
            size = nbytes((int(length) for length in match[1].split(",") if length), match[2])
        except TypeError:  # of an unknown type
            size = None
        return Request(torch_device_name(match[3]), size, line, line=line_made, op=op)
    match = _BYTES.search(text)
    return Request(None, None if match is None else int(match[1]), line, line=line_made, op=op)


def _made_at(text: str) -> SourceLine | None:
    """Return the program's innermost line that made the failed node."""
    lines = [match for match in _FRAME.finditer(text) if not is_foreign(match[1])]
    return SourceLine(lines[-1][1], int(lines[-1][2]), lines[-1][3]) if lines else None
