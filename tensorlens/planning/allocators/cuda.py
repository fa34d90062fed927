"""torch's caching allocator for CUDA, without a device, and its settings.

The rules are those of ``DeviceCachingAllocator`` in ``c10/cuda/CUDACachingAllocator.cpp`` of torch
2.13; for expandable segments ``try_allocate_expandable_block``, ``map_block`` and ``unmap_block``,
for unused memory ``release_blocks``. Left out are ``release_available_cached_blocks``, private
pools (CUDA graphs, ``torch.cuda.MemPool``) and streams: all blocks belong to the default one.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.planning.allocators.simulated import (
    ADDRESSES,
    FREE,
    SHIFT,
    UNMAPPED,
    Block,
    Pool,
    SimulatedAllocator,
    SimulatedOutOfMemory,
)
from tensorlens.records.logs.events import EventLog
from tensorlens.records.torch_files.sizes import (
    LARGE_SEGMENT,
    SMALL,
    SMALL_SEGMENT,
    Rules,
    segment_size,
)
from tensorlens.units import rounded_up

_ADDRESS_SPACE = 1 << 40
"""Bytes of an expandable segment's address space: more than any card has. torch reserves 9/8 of the
card's memory, which makes no difference unless the address space is fragmented."""


class CachingAllocator(SimulatedAllocator):
    """torch's caching allocator on one device.

    Args:
        rules: settings of ``PYTORCH_CUDA_ALLOC_CONF``.
        capacity: bytes that the driver has for this allocator, without the CUDA context and other
            users of the card; None: no limit.
        log: where events are written, if anywhere.
        device: the device's name in the log and in errors.
    """

    def __init__(
        self,
        rules: Rules | None = None,
        *,
        capacity: int | None = None,
        log: EventLog | None = None,
        device: str = "cuda:0",
    ) -> None:
        super().__init__(capacity, log, device)
        self.rules = Rules() if rules is None else rules

    def empty_cache(self) -> None:
        """Return all unused segments to the driver."""
        self._stack = -1
        self._release_cached()

    def _obtain(self, nbytes: int) -> tuple[Block, int]:
        size = self.rules.rounded(nbytes)
        small = size <= SMALL
        pool = self.small if small else self.large
        block = self._take_cached(pool, size) or self._take_new(pool, size)
        if self.rules.splits(size, block.size - size, small=small):
            self._split(block, size)
        return block, size

    def _take_cached(self, pool: Pool, size: int) -> Block | None:
        """Take the free block for a request out of its pool (``get_free_block``)."""
        blocks, keys = self.blocks, pool.keys
        index = bisect_left(keys, size << SHIFT)
        if index == len(keys):
            return None
        block = blocks[keys[index] & ADDRESSES]
        # among blocks of expandable segments, the one with the least room to grow
        while block.base is not None and index + 1 < len(keys):
            following = blocks[keys[index + 1] & ADDRESSES]
            if _room(following) >= _room(block):
                break
            index, block = index + 1, following
        limit = self.rules.max_split_size
        if limit is not None:
            if size < limit <= block.size:
                return None
            if size >= limit and block.size >= size + LARGE_SEGMENT:
                return None
        del keys[index]
        return block

    def _take_new(self, pool: Pool, size: int) -> Block:
        """Return a free block from the driver that is in no pool."""
        block = self._take_from_driver(pool, size)
        if block is None:
            self._release_cached()
            block = self._take_from_driver(pool, size)
        if block is None:
            raise SimulatedOutOfMemory(self.device, size)
        return block

    def _take_from_driver(self, pool: Pool, size: int) -> Block | None:
        if self.rules.expandable_segments:
            return self._grow(pool, size)
        return self._take_segment(pool, segment_size(size))

    def _release_cached(self) -> None:
        """Return unused segments and unused units of expandable ones to the driver.

        The large pool comes first.
        """
        for pool in (self.large, self.small):
            expandable = []
            for block in self._free_blocks(pool):
                if block.base is not None:
                    expandable.append(block)
                elif not block.is_split:
                    self._release_segment(block)
            for block in expandable:
                self._shrink(block)

    def _grow(self, pool: Pool, size: int) -> Block | None:
        """Map memory until there is a free block of this size, and take it out of its pool.

        Return None if the driver has no room; what was mapped until then stays as free memory.
        """
        block = self._growable(pool, size)
        if block.state == UNMAPPED and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            if after is None or not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        self._remove(block)
        return block

    def _growable(self, pool: Pool, size: int) -> Block:
        """Return the lowest free or unmapped block that begins enough address space."""
        for address in pool.unmapped:
            block = self.blocks[address]
            if block.prev is not None and block.prev.state == FREE:
                block = block.prev
            if _has_space(block, size):
                return block
        extent = rounded_up(max(_ADDRESS_SPACE, size), _unit(pool))
        address = self._reserve_addresses(extent)
        block = self.blocks[address] = Block(pool, address, extent, UNMAPPED, base=address)
        self._insert(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Map whole units at the start of an unmapped block; False if the driver has no room."""
        mapped = rounded_up(size, _unit(block.pool))
        if not self._has_room(mapped):
            return False
        self._remove(block)
        if mapped < block.size:
            self._split(block, mapped)
        self._count_reserved(block.address, mapped)
        self._merge(block, FREE)
        if block.prev is None and block.segment_stack < 0:
            block.segment_stack = self._stack
        return True

    def _shrink(self, block: Block) -> None:
        """Unmap the whole units in a free block; drop address space that has no memory left."""
        base, unit = block.base, _unit(block.pool)
        assert base is not None
        begin = base + rounded_up(block.address - base, unit)
        end = base + (block.address + block.size - base) // unit * unit
        if begin >= end:
            return
        self._remove(block)
        if block.address < begin:
            self._split(block, begin - block.address)
            self._insert(block)
            block = self.blocks[begin]
            self._remove(block)
        if end < block.address + block.size:
            self._split(block, end - begin)
        self._count_returned(begin, end - begin)
        self._merge(block, UNMAPPED)
        if not block.is_split:
            self._drop(block)


def _room(block: Block) -> int:
    """Return the bytes of a block and of the unmapped address space behind it."""
    after = block.next
    return block.size + (after.size if after is not None and after.state == UNMAPPED else 0)


def _has_space(block: Block | None, size: int) -> bool:
    """Tell whether free and unmapped blocks from this one on have enough address space."""
    available = 0
    while available < size and block is not None and block.state in (FREE, UNMAPPED):
        available += block.size
        block = block.next
    return available >= size


def _unit(pool: Pool) -> int:
    """Return the bytes that are mapped into an expandable segment at once."""
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT


VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Environment variables that hold the settings; the first that is set counts."""

_OPTION = r"([^,:\[\]]+):(\[[^\]]*\]|[^,:\[\]]+)(?:,|$)"
_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "expandable_segments": ("expandable_segments", {"True": True, "False": False}.__getitem__),
    "max_split_size_mb": ("max_split_size", lambda value: int(value) << 20),
}
"""Option to the field of :class:`Rules` that it sets, and what reads its value."""


def settings_text(environment: Mapping[str, str]) -> str:
    """Return the settings in an environment such as ``os.environ``, as they are written."""
    return next((environment[name] for name in VARIABLES if name in environment), "")


def parse_settings(text: str) -> tuple[Rules, tuple[str, ...]]:
    """Return the rules that ``max_split_size_mb:128`` sets, and the options that are not simulated.

    Raises:
        UsageError: the text is no list of options, a value is malformed, or the text asks for an
            allocator other than torch's own.
    """
    compact = "".join(text.split())
    if not re.fullmatch(f"(?:{_OPTION})*", compact):
        raise UsageError(f"PYTORCH_CUDA_ALLOC_CONF: {text!r} is no list of NAME:VALUE with commas")
    fields, unsimulated = {}, []
    for name, value in re.findall(_OPTION, compact):
        if name in _READERS:
            field, read = _READERS[name]
            try:
                fields[field] = read(value)
            except (KeyError, ValueError):
                raise UsageError(
                    f"PYTORCH_CUDA_ALLOC_CONF: {name} has no value {value!r}"
                ) from None
        elif name != "backend":
            unsimulated.append(name)
        elif value != "native":
            raise UsageError(f"backend:{value} cannot be simulated: only torch's own allocator can")
    return Rules(**fields), tuple(unsimulated)
