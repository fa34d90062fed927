"""A loop's steps in torch: the memory allocated after each, and the blocks that each step left.

Blocks of accelerators are noted when their allocators hand them out, so that an address that is
handed out again is another block. torch's memory history is neither read nor changed.
"""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter

import torch

from tensorlens.frameworks.base import StepFigures
from tensorlens.frameworks.host.allocator import LISTS, BirthLines, listed, start
from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.retention import GrowingGraph, Holdings, LeftBlock
from tensorlens.frameworks.torch import cpu
from tensorlens.frameworks.torch.accelerators import (
    backends,
    device_counter,
    kind_and_index,
    used_devices,
)
from tensorlens.frameworks.torch.backends import KINDS
from tensorlens.frameworks.torch.census.cuda_blocks import Block, allocated_blocks
from tensorlens.frameworks.torch.native import DEVICE_BLOCKS
from tensorlens.interpreter import paused_collector
from tensorlens.native.build import NativeUnavailable, Signatures, declare, load
from tensorlens.records.tensors import SourceLine

_BY_TYPE = {kind.device_type: kind for kind in KINDS}
"""Backends by torch's number, which for ROCm is CUDA's here."""
_FOLLOWED = {kind.name: kind for kind in KINDS if kind.can_list_blocks}
_REPORTING = "native"
"""CUDA's allocator that reports its blocks; ``cudaMallocAsync`` and pluggable ones do not."""
_BEFORE = -1
"""Era of blocks that were made before the first loop was followed."""
_FREE_SECONDS, _TIME_FRACTION = 0.05, 0.05
"""Limit to the time of reading allocators' lists: seconds, and a fraction of the loop's time."""
_NO_REPORTS = "its allocator reports no blocks"
_BITS = 32
"""Bits of a line's number below those of its device, which are 0 for the host."""

_Address, _Number = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES: Signatures = {
    **LISTS,
    "tl_devices_follow": (_Number, ()),
    "tl_devices_leave": (None, ()),
    "tl_devices_adopt": (None, (_Address, _Address, _Number, _Number)),
    "tl_devices_era": (None, (ctypes.c_int32,)),
    "tl_devices_living": (_Address, (ctypes.c_int32,)),
}


class TorchSteps(Steps):
    """Follows a loop until it is closed; costs next to nothing while a step runs.

    Raises:
        UsageError: ``TENSORLENS_COUNTER`` asks for a counter that is not available.
    """

    def __init__(self) -> None:
        self._unwatch = cpu.watch()
        self._second_step: int | None = None
        """Number of the first autograd node that this thread makes in the second step; the first
        step may have begun before the watch."""
        super().__init__(cpu.cpu_counter(), cpu.allocator(), cpu.fallback_reason())
        self._devices = DeviceSteps()

    def figures(self) -> StepFigures:
        """Return the allocated memory."""
        found = self._figures({device: device_counter(device) for device in used_devices()})
        lines = {**found.lines, **self._devices.lines()}
        return StepFigures(found.allocated, found.reserved, lines, self._devices.asked())

    def line(self, birth: int) -> SourceLine | None:
        """Return the line with a number in the figures, if known."""
        return self._devices.line(birth) if birth >> _BITS > 0 else super().line(birth)

    def device(self, birth: int) -> str:
        """Return the device of the blocks of a line."""
        return _name_of(abs(birth) >> _BITS)

    def notes(self) -> list[str]:
        """Return notes for the report on what could not be followed."""
        return super().notes() + self._devices.notes()

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Search the heap once for the holders of the blocks at these addresses."""
        from tensorlens.frameworks.torch.leaks import holdings

        return holdings.Holdings(addresses)

    def growing_graph(self, made: int) -> GrowingGraph | None:
        """Return the live tensor whose autograd graph grew most in ``made`` steps, if one did."""
        from tensorlens.frameworks.torch.leaks import growing_graph

        begin = self._second_step
        return None if begin is None else growing_graph.growing_graph(self, begin, made - 1)

    def close(self) -> None:
        """Stop following."""
        self._devices.close()
        self._unwatch()

    def _set_era(self, era: int) -> None:
        super()._set_era(era)
        self._devices.set_era(era)
        if self._second_step is None and len(self._begun) > 1:
            self._second_step = torch._C._autograd._get_sequence_nr()

    def _living(self, since: int) -> list[LeftBlock] | None:
        on_host, on_devices = super()._living(since), self._devices.left(since)
        if on_host is None or on_devices is None:
            return on_devices if on_host is None else on_host
        return on_host + on_devices


def is_possible() -> bool:
    """Return whether an accelerator here can be followed; initialise nothing."""
    return any(backends[kind].may_exist() for kind in _FOLLOWED if kind in backends)


class DeviceSteps:
    """Follows the blocks of all accelerators, where that is possible, until it is closed.

    Several share one table, which holds the blocks made since the first of them. The allocators'
    own lists give the blocks made before that, and the requested sizes of live ones.
    """

    def __init__(self) -> None:
        self._table: BirthLines | None = None
        """None while nothing is followed."""
        self._why_not = _NO_REPORTS
        self._begun = perf_counter()
        self._spent = 0.0
        try:
            if is_possible():
                self._follow(_native_table())
        except NativeUnavailable as error:
            self._why_not = str(error)

    def _follow(self, table: BirthLines) -> None:
        if table.library.tl_devices_follow() <= 0:
            self._why_not = (
                f"{DEVICE_BLOCKS.label} is not in use: no library of torch reports to it"
            )
            return
        self._table = table
        for kind in {kind_and_index(device)[0] for device in used_devices()} & _FOLLOWED.keys():
            _adopt(kind, table)

    def set_era(self, era: int) -> None:
        """Set the era of blocks made from now on (at least 0)."""
        if self._table is not None:
            self._table.library.tl_devices_era(era)

    def _living(self, since: int) -> list[array[int]]:
        """Return address, size, birth, era and device of the blocks of an era and later ones."""
        if self._table is None:
            return [array("q") for _ in range(5)]
        return listed(self._table.library, "tl_devices_living", "Qqiiq", since)

    def lines(self) -> dict[int, tuple[int, int]]:
        """Return the number and bytes of the live blocks of each line."""
        _, sizes, births, _, devices = self._living(_BEFORE)
        return _sums(map(_number, births, devices), sizes)

    def asked(self) -> dict[int, tuple[int, int]] | None:
        """Return :meth:`lines` with the bytes asked for; None if it would take too long.

        It reads the allocator's list, whose time grows with the number of blocks.
        """
        begun = perf_counter()
        if self._spent > _FREE_SECONDS + _TIME_FRACTION * (begun - self._begun):
            return None
        # the many new objects of the list would start the collector
        with paused_collector():
            left = self.left(_BEFORE)
        if left is None:
            return None
        sums = _sums((each.birth for each in left), (each.size for each in left))
        self._spent += perf_counter() - begun
        return sums

    def left(self, since: int) -> list[LeftBlock] | None:
        """Return the live blocks of era ``since`` and later ones, with their eras as steps.

        None if nothing is followed.
        """
        if self._table is None:
            return None
        columns = self._living(since)
        kinds = {device: kind_and_index(_name_of(device))[0] for device in set(columns[-1])}
        requested = {kind: _handed_out(kind) for kind in set(kinds.values())}
        left = []
        for address, size, birth, era, device in zip(*columns, strict=True):
            known = requested[kinds[device]]
            if known is not None and address not in known:
                # freed, as the allocator's own list shows
                continue
            asked = size if known is None else known[address].requested
            left.append(LeftBlock(address, asked, _number(birth, device), era, size))
        return left

    def line(self, number: int) -> SourceLine | None:
        """Return the line with a number, if known."""
        if self._table is None:
            return None
        return SourceLine(*self._table.birth_line(number % (1 << _BITS)))

    def notes(self) -> list[str]:
        """Return notes for the report on what could not be followed."""
        return [
            f"{device} is not followed step by step: {reason}"
            for device in used_devices()
            if (reason := self._reason(device)) is not None
        ]

    def _reason(self, device: str) -> str | None:
        """Return why a device is not followed; None if it is."""
        if self._table is None:
            return self._why_not
        kind, _ = kind_and_index(device)
        if kind not in _FOLLOWED:
            return _NO_REPORTS
        name = getattr(backends[kind].module, "get_allocator_backend", lambda: _REPORTING)()
        return None if name == _REPORTING else f"its allocator ({name}) reports no blocks"

    def close(self) -> None:
        """Stop following; a second call does nothing."""
        table, self._table = self._table, None
        if table is not None:
            table.library.tl_devices_leave()


def _adopt(kind: str, table: BirthLines) -> None:
    """Put the blocks that a backend's allocator has handed out into the table."""
    columns: dict[int, tuple[array[int], array[int]]] = {}
    for address, block in (_handed_out(kind) or {}).items():
        addresses, sizes = columns.setdefault(block.device, (array("Q"), array("q")))
        addresses.append(address)
        sizes.append(block.size)
    first = _FOLLOWED[kind].device_type + 1 << 8
    for index, (addresses, sizes) in columns.items():
        table.library.tl_devices_adopt(start(addresses), start(sizes), len(sizes), first | index)


def _number(birth: int, device: int) -> int:
    """Return one number for a line and a device; negative if the line is unknown."""
    number = device << _BITS
    return -number if birth < 0 else number + birth


def _sums(numbers: Iterable[int], sizes: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return the number and bytes of the blocks of each line."""
    sums: dict[int, tuple[int, int]] = {}
    for number, size in zip(numbers, sizes, strict=True):
        blocks, nbytes = sums.get(number, (0, 0))
        sums[number] = blocks + 1, nbytes + size
    return sums


def _name_of(device: int) -> str:
    """Return torch's name of a device by the native part's number."""
    kind = _BY_TYPE.get((device >> 8) - 1)
    return "cpu" if kind is None else kind.spell(device & 0xFF)


def _handed_out(kind: str) -> Mapping[int, Block] | None:
    """Return the allocated blocks by address; None if the allocator has no list."""
    try:
        return {block.start: block for block in allocated_blocks(backends[kind].segments())}
    except Exception:  # an allocator without a list, a lost context
        return None


@functools.cache
def _native_table() -> BirthLines:
    """Return the table of blocks, with the lines that make them if available.

    Raises:
        NativeUnavailable: it cannot be built.
    """
    table = BirthLines(load(DEVICE_BLOCKS))
    declare(table.library, _SIGNATURES)
    with suppress(NativeUnavailable):
        # this costs nothing until a loop is followed
        table.watch_births()
    return table
