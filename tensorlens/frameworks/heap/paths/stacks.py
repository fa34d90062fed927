"""What is on the evaluation stacks of running functions, as far as it can be told.

A slot above a stack's top keeps the address of what was there before. Where the top is not known,
all slots are given: that something is among them is no proof then.
"""

from __future__ import annotations

import ctypes
import sys
from types import FrameType

from tensorlens.frameworks.heap.native import native

_FRAME, _TOP = 24, 64
_CODE = 32 if sys.version_info < (3, 12) else 0


def stacked(frame: FrameType, is_callers: bool) -> list[int]:
    """Return the addresses on a frame's stack; ``is_callers``: it waits in the caller's thread."""
    # later ones tag the addresses
    reader = native() if sys.version_info < (3, 14) else None
    if reader is None:
        return []
    code = frame.f_code
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    first = len(code.co_varnames) + len(cells) + len(code.co_freevars)
    read = reader.frame(frame, 0, first + code.co_stacksize)
    if read is None:
        return []
    top = _top(frame) if is_callers else -1
    return [address for address in read[0][first : top if top >= first else None] if address]


def _top(frame: FrameType) -> int:
    """Return how many slots are in use, or -1 while the frame is in a call into C."""
    inner = ctypes.c_uint64.from_address(id(frame) + _FRAME).value
    if not inner or ctypes.c_uint64.from_address(inner + _CODE).value != id(frame.f_code):
        return -1
    return ctypes.c_int32.from_address(inner + _TOP).value
