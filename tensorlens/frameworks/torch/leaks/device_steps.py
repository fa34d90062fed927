"""A loop's steps on accelerators: which blocks of which step are left there, and of which line."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from tensorlens.frameworks.base import LeftBlocks
from tensorlens.frameworks.torch.accelerators import backends, used_devices
from tensorlens.frameworks.torch.backends import KINDS
from tensorlens.frameworks.torch.leaks.device_blocks import BEFORE, DeviceBlocks, name_of
from tensorlens.interpreter import paused_collector
from tensorlens.records.tensors import SourceLine

_FOLLOWED = tuple(kind.name for kind in KINDS if kind.lists_blocks)
_FREE, _PART = 0.05, 0.05
"""Seconds for looks at all blocks that are free, and the part of the time that further ones get."""
_HANDED_OUT = "active_allocated"
_FIRST = 1 << 24
"""The first number of a line here; lines of the host have smaller ones."""


def is_possible() -> bool:
    """Tell whether there is an accelerator here that can be followed; initialises nothing."""
    return any(_is_visible(backends[kind]) for kind in _FOLLOWED if kind in backends)


def _is_visible(backend: Any) -> bool:
    try:
        # None: only initialising would tell
        return bool(backend.visible() != 0)
    except Exception:  # a lost context or driver: nothing that runs there
        return False


class DeviceSteps:
    """Follows the blocks of all accelerators from its making until it is closed.

    Each block is noted when its allocator hands it out, so that an address that is handed out
    again is another block, whatever happens between two looks; torch's memory history is neither
    asked nor changed. The allocator's own list of blocks says what is there at the beginning,
    and what lives at the end, with the sizes that were asked for.

    Args:
        blocks: the table; it is closed with this.
    """

    def __init__(self, blocks: DeviceBlocks) -> None:
        self._blocks = blocks
        self._numbers: dict[tuple[int, int], int] = {}
        self._born: dict[int, tuple[int, int]] = {}
        self._made = {device: _allocations(device) for device in used_devices()}
        for kind in {device.partition(":")[0] for device in used_devices()}:
            self._adopt(kind)
        self._begun = perf_counter()
        self._spent = 0.0

    def _adopt(self, kind: str) -> None:
        columns: dict[int, tuple[array[int], array[int]]] = {}
        for address, block in (_handed_out(kind) or {}).items():
            addresses, sizes = columns.setdefault(block.device, (array("Q"), array("q")))
            addresses.append(address)
            sizes.append(block.size)
        for device, (addresses, sizes) in columns.items():
            self._blocks.adopt(f"{kind}:{device}", addresses, sizes)

    def set_era(self, era: int) -> None:
        """Say which step it is."""
        self._blocks.set_era(era)

    def lines(self) -> dict[int, tuple[int, int]]:
        """Return for each number of a line how many blocks and bytes of it live."""
        living = self._blocks.living(BEFORE)
        return _sums(map(self._number, living.birth, living.device), living.size)

    def asked(self) -> dict[int, tuple[int, int]] | None:
        """Return the same with the bytes that were asked for; None where it would take too long.

        The allocator's list is read, which takes longer the more blocks there are.
        """
        begun = perf_counter()
        if self._spent > _FREE + _PART * (begun - self._begun):
            return None
        # what the list is made of would have it run
        with paused_collector():
            left = self.left(BEFORE)
        sums = _sums(left.birth, left.size)
        self._spent += perf_counter() - begun
        return sums

    def left(self, since: int) -> LeftBlocks:
        """Return the blocks of the era ``since`` or later that live, with their eras as steps."""
        living = self._blocks.living(since)
        requested = {kind: _handed_out(kind) for kind in {*map(_kind, set(living.device))}}
        left = LeftBlocks()
        rows = zip(living.address, living.size, living.birth, living.era, strict=True)
        for device, (address, size, birth, era) in zip(living.device, rows, strict=True):
            known = requested[_kind(device)]
            if known is not None and address not in known:
                # the allocator knows better
                continue
            left.address.append(address)
            left.size.append(size if known is None else known[address].asked)
            left.birth.append(self._number(birth, device))
            left.step.append(era)
            left.taken.append(size)
        return left

    def line(self, number: int) -> SourceLine | None:
        """Return the line with a number; None where it is not known."""
        birth, _ = self._born.get(number, (-1, 0))
        return None if birth < 0 else SourceLine(*self._blocks.birth_line(birth))

    def device(self, number: int) -> str | None:
        """Return the device of the blocks with a line's number; None if it is not of here."""
        born = self._born.get(number)
        return None if born is None else name_of(born[1])

    def notes(self) -> list[str]:
        """Return lines for the report on what could not be followed."""
        return [note for device in used_devices() if (note := self._note(device)) is not None]

    def close(self) -> None:
        """Follow no longer."""
        self._blocks.close()

    def _number(self, birth: int, device: int) -> int:
        """Return one number for a line and a device: each device's blocks are told apart."""
        number = self._numbers.get((birth, device))
        if number is None:
            count = len(self._numbers)
            number = _FIRST + count if birth >= 0 else -2 - count
            self._numbers[birth, device] = number
            self._born[number] = birth, device
        return number

    def _note(self, device: str) -> str | None:
        seen = self._blocks.made(device)
        if device.partition(":")[0] not in _FOLLOWED:
            return f"{device} is not followed step by step: its allocator reports no blocks"
        made = _allocations(device)
        if made is None:
            return None
        missing = made - (self._made.get(device) or 0) - seen
        if missing <= 0:
            return None
        return (
            f"{device}: {missing} of {missing + seen} blocks were not seen when they were made "
            "(by an allocator that reports none): what is left of them is not told"
        )


def _sums(numbers: Iterable[int], sizes: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Return for each number of a line how many blocks and bytes it has."""
    sums: dict[int, tuple[int, int]] = {}
    for number, size in zip(numbers, sizes, strict=True):
        blocks, nbytes = sums.get(number, (0, 0))
        sums[number] = blocks + 1, nbytes + size
    return sums


def follow(knows_lines: bool) -> DeviceSteps:
    """Follow the accelerators from now on.

    Args:
        knows_lines: whether this Python's frames were found to be as expected.

    Raises:
        NativeUnavailable: they cannot be followed; the text says why.
    """
    return DeviceSteps(DeviceBlocks(knows_lines))


def not_followed(reason: str) -> list[str]:
    """Return lines for the report where nothing is followed."""
    return [f"{device} is not followed step by step: {reason}" for device in used_devices()]


def _kind(device: int) -> str:
    return name_of(device).partition(":")[0]


@dataclass(frozen=True, slots=True)
class _Block:
    device: int
    size: int
    asked: int


def _handed_out(kind: str) -> Mapping[int, _Block] | None:
    """Return the blocks that are handed out, by address; None where the allocator has no list."""
    try:
        return dict(block for segment in backends[kind].segments() for block in _blocks_of(segment))
    except Exception:  # an allocator without a list, a lost context
        return None


def _blocks_of(segment: Mapping[str, Any]) -> Iterator[tuple[int, _Block]]:
    address, device = segment["address"], segment["device"]
    for block in segment["blocks"]:
        size = block["size"]
        if block["state"] == _HANDED_OUT:
            yield address, _Block(device, size, block.get("requested_size", size))
        address += size


def _allocations(device: str) -> int | None:
    """Return how many blocks of a device were ever handed out; None where nobody counts."""
    kind, _, index = device.partition(":")
    backend = backends.get(kind)
    if backend is None or backend.statistics is None:
        return None
    try:
        stats = backend.module.memory_stats_as_nested_dict(int(index or 0))
        return int(stats["allocation"]["all"]["allocated"])
    except Exception:  # an allocator without statistics
        return None
