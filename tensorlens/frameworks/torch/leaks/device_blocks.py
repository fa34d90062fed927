"""The blocks that accelerators' allocators have handed out, with the step they were made in."""

from __future__ import annotations

import atexit
import ctypes
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.torch.backends import KINDS
from tensorlens.frameworks.torch.native.build import DEVICE_BLOCKS
from tensorlens.native.build import NativeUnavailable, load
from tensorlens.user_code import foreign_folders

_KINDS = {kind.device_type: kind for kind in KINDS}
"""The native part says 1, CUDA's, for ROCm too."""

BEFORE = -1
"""The era of blocks that were made before someone followed."""

_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_view = ctypes.PYFUNCTYPE(ctypes.py_object, _Address, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


@dataclass(frozen=True, slots=True)
class LiveBlocks:
    """Blocks in columns."""

    address: array[int]
    size: array[int]
    """As the allocator rounds it."""
    birth: array[int]
    """Number of the line that made it, -1 unknown."""
    era: array[int]
    device: array[int]
    """A number that :func:`name_of` gives the name of."""


def name_of(device: int) -> str:
    """Return torch's name of a device with this number."""
    kind = _KINDS.get((device >> 8) - 1)
    return "cpu" if kind is None else kind.spell(device & 0xFF)


def number_of(name: str) -> int:
    """Return the number of a device with this name; 0 where there is none."""
    kind, _, index = name.partition(":")
    types = [number for number, each in _KINDS.items() if each.name == kind]
    return (types[0] + 1) << 8 | int(index or 0) if types else 0


class DeviceBlocks:
    """Follows what accelerators' allocators hand out, until it is closed.

    Several may at once: they share one table, which holds what was made since the first of them.

    Args:
        knows_lines: whether this Python's frames were found to be as expected; without that no
            line is known.

    Raises:
        NativeUnavailable: the native part cannot be had, or nobody reports to it.
    """

    def __init__(self, knows_lines: bool = True) -> None:
        self._library = library = _loaded()
        if knows_lines:
            _watch_births(library)
        self._is_open = library.tl_devices_follow() > 0
        if not self._is_open:
            raise NativeUnavailable(
                f"{DEVICE_BLOCKS.label} is not in use: no library of torch reports to it"
            )

    def set_era(self, era: int) -> None:
        """Say which step it is: blocks made from now on keep the number (at least 0)."""
        self._library.tl_devices_era(era)

    def adopt(self, device: str, addresses: array[int], sizes: array[int]) -> None:
        """Take in blocks that were made before: an ``array('Q')``, and an ``array('q')``.

        Their era is :data:`BEFORE`. Those that are known stay as they are.
        """
        if addresses.typecode != "Q" or sizes.typecode != "q" or len(addresses) != len(sizes):
            raise TypeError("array('Q') and array('q') of one length expected")
        starts = addresses.buffer_info()[0], sizes.buffer_info()[0]
        self._library.tl_devices_adopt(*starts, len(addresses), number_of(device))

    def living(self, since: int = 0) -> LiveBlocks:
        """Return all blocks that live, of the era ``since`` or later.

        Raises:
            MemoryError: there is none for the list.
        """
        library, columns = self._library, [array(code) for code in "Qqiiq"]
        handle = library.tl_devices_living(since)
        if handle is None:
            raise MemoryError
        try:
            starts = (_Address * len(columns))()
            count = library.tl_devices_living_look(handle, ctypes.addressof(starts))
            for column, start in zip(columns, starts, strict=True):
                if count:
                    column.frombytes(_view(start, count * column.itemsize, 0x100))
            return LiveBlocks(*columns)
        finally:
            library.tl_devices_living_release(handle)

    def made(self, device: str) -> int:
        """Return how many blocks of a device were seen to be made."""
        return int(self._library.tl_devices_made(number_of(device)))

    def birth_line(self, birth: int) -> tuple[str, int, str]:
        """Return file name, line number and qualified function name of a birth.

        Raises:
            LookupError: there is no such birth.
        """
        length = ctypes.c_int64()
        text = self._library.tl_devices_birth_line(birth, ctypes.byref(length))
        if text is None:
            raise LookupError(f"no birth {birth}")
        filename, line, function = (
            ctypes.string_at(text, 4 * length.value)
            .decode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")
            .split("\0")
        )
        return filename, ord(line), function

    def close(self) -> None:
        """Follow no longer; the second time it does nothing."""
        if self._is_open:
            self._is_open = False
            self._library.tl_devices_leave()


def _loaded() -> ctypes.PyDLL:
    library = load(DEVICE_BLOCKS)
    number, pointer = ctypes.c_int32, _Address
    signatures: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
        "follow": (_Number, ()),
        "leave": (None, ()),
        "adopt": (None, (pointer, pointer, _Number, _Number)),
        "era": (None, (number,)),
        "made": (_Number, (_Number,)),
        "living": (pointer, (number,)),
        "living_look": (_Number, (pointer, pointer)),
        "living_release": (None, (pointer,)),
        "prepare_births": (ctypes.c_int, (pointer, _Number)),
        "switch_births": (None, (ctypes.c_int,)),
        "birth_line": (pointer, (number, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"tl_devices_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_has_ended = False
_watches_births = False


def _watch_births(library: ctypes.PyDLL) -> None:
    """Look for lines from now on; it costs nothing while nobody follows."""
    global _watches_births
    if _watches_births or _has_ended:
        return
    text = "\0".join(foreign_folders())
    folders = text.encode(f"utf-32-{sys.byteorder[0]}e", "surrogatepass")
    if library.tl_devices_prepare_births(folders, len(text)) == 0:
        _watches_births = True
        library.tl_devices_switch_births(1)
        # the interpreter's exit frees what other threads' frames are read by
        atexit.register(_end, library)


def _end(library: ctypes.PyDLL) -> None:
    global _has_ended
    _has_ended = True
    library.tl_devices_switch_births(0)
