"""Reading an accelerator's memory natively: its level, and the peak since the last read."""

from __future__ import annotations

import ctypes
from array import array

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.torch.native.build import DEVICE_BLOCKS
from tensorlens.native.build import NativeUnavailable, declare, load


class AllocatorLevels:
    """The levels of one backend's devices, from their allocator's own statistics.

    Peaks are kept from what the allocator reports of each block, so that torch's own peaks stay as
    the program expects them.

    Args:
        device_type: the backend's number in ``c10/core/DeviceType.h``.

    Raises:
        NativeUnavailable: the native part cannot be had, no library reports to it, or torch is
            older than 2.9.
    """

    def __init__(self, device_type: int) -> None:
        self._type = device_type
        library = load(DEVICE_BLOCKS)
        declare(
            library,
            {
                "tl_levels_connect": (ctypes.c_int64, ()),
                "tl_levels_read": (ctypes.c_int, (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)),
            },
        )
        if not library.tl_levels_connect():
            raise NativeUnavailable(f"{DEVICE_BLOCKS.label} cannot read levels of this torch")
        self._read = library.tl_levels_read

    def read(self, index: int) -> tuple[int, int, int]:
        """Return ``(allocated, peak since the previous read, reserved)`` in bytes.

        Raises:
            LookupError: torch does not tell, as of a device that is lost.
        """
        figures = array("q", (UNKNOWN,) * 3)
        if not self._read(self._type, index, figures.buffer_info()[0]):
            raise LookupError("the allocator does not tell its level")
        allocated, peak, reserved = figures
        return allocated, peak, reserved
