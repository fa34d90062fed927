"""The blocks that accelerators' allocators have handed out, with the step they were made in."""

from __future__ import annotations

import atexit
import ctypes
from array import array
from dataclasses import dataclass

from tensorlens.frameworks.host.allocator import LISTS, line_of, listed, start, wide
from tensorlens.frameworks.torch.backends import KINDS
from tensorlens.frameworks.torch.native.build import DEVICE_BLOCKS
from tensorlens.native.build import NativeUnavailable, Signatures, declare, load
from tensorlens.user_code import foreign_prefixes

_KINDS = {kind.device_type: kind for kind in KINDS}
"""The native part says 1, CUDA's, for ROCm too."""

BEFORE = -1
"""The era of blocks that were made before someone followed."""

_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Signatures = {
    **LISTS,
    "tl_devices_follow": (_Number, ()),
    "tl_devices_leave": (None, ()),
    "tl_devices_adopt": (None, (_Address, _Address, _Number, _Number)),
    "tl_devices_era": (None, (ctypes.c_int32,)),
    "tl_devices_made": (_Number, (_Number,)),
    "tl_devices_living": (_Address, (ctypes.c_int32,)),
    "tl_devices_prepare_births": (ctypes.c_int, (_Address, _Number)),
    "tl_devices_switch_births": (None, (ctypes.c_int,)),
    "tl_devices_birth_line": (_Address, (ctypes.c_int32, _Address)),
}


@dataclass(frozen=True, slots=True)
class LiveDeviceBlocks:
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
        self._library.tl_devices_adopt(
            start(addresses), start(sizes), len(addresses), number_of(device)
        )

    def living(self, since: int = 0) -> LiveDeviceBlocks:
        """Return all blocks that live, of the era ``since`` or later.

        Raises:
            MemoryError: there is none for the list.
        """
        return LiveDeviceBlocks(*listed(self._library, "tl_devices_living", "Qqiiq", since))

    def made(self, device: str) -> int:
        """Return how many blocks of a device were seen to be made."""
        return int(self._library.tl_devices_made(number_of(device)))

    def birth_line(self, birth: int) -> tuple[str, int, str]:
        """Return file name, line number and qualified function name of a birth.

        Raises:
            LookupError: there is no such birth.
        """
        return line_of(self._library.tl_devices_birth_line, birth)

    def close(self) -> None:
        """Follow no longer; the second time it does nothing."""
        if self._is_open:
            self._is_open = False
            self._library.tl_devices_leave()


def _loaded() -> ctypes.PyDLL:
    library = load(DEVICE_BLOCKS)
    declare(library, _SIGNATURES)
    return library


_has_ended = False
_watches_births = False


def _watch_births(library: ctypes.PyDLL) -> None:
    """Look for lines from now on; it costs nothing while nobody follows."""
    global _watches_births
    if _watches_births or _has_ended:
        return
    if library.tl_devices_prepare_births(*wide(foreign_prefixes())) == 0:
        _watches_births = True
        library.tl_devices_switch_births(1)
        # the interpreter's exit frees what other threads' frames are read by
        atexit.register(_end, library)


def _end(library: ctypes.PyDLL) -> None:
    global _has_ended
    _has_ended = True
    library.tl_devices_switch_births(0)
