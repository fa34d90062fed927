"""Blocks of a caching allocator matched with the storages of tensors.

Takes the result of ``torch.cuda.memory_snapshot()`` or ``torch.xpu.memory_snapshot()``: segments
with ``device``, ``total_size``, ``segment_pool_id``, ``is_expandable`` and ``blocks``, and blocks
with ``address``, ``size``, ``requested_size``, ``state`` and, with history on, ``frames``, the
innermost first. The blocks of a segment follow each other without gaps. All of this was read in
``torch/csrc/cuda/Module.cpp`` and ``torch/csrc/xpu/Module.cpp`` (2.13 lists the same keys in
``torch/cuda/memory.py``, where the state of a block that waits is ``active_awaiting_free``; the
C++ code says ``active_pending_free``). Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensorlens.records.ledger import Part, UnnamedBlock
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign

Range = tuple[int, int]
"""Address of the first byte, and of the first byte after the last."""
Segment = Mapping[str, Any]

MAX_BLOCKS = 100
"""Maximum number of unnamed blocks that are described."""

_ALLOCATED = "active_allocated"
_FREE = "inactive"
_SHARED_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class Account:
    """Sums of one device's blocks, in bytes.

    ``named`` is a part of ``allocated``, which is a part of ``reserved``. All three come from one
    snapshot, so they agree whatever other threads do meanwhile.
    """

    allocated: int
    """Sum of the allocated blocks, equal to ``allocated_bytes.all.current`` of the statistics: both
    change in ``malloc`` and ``free`` under one lock (``c10/cuda/CUDACachingAllocator.cpp``)."""
    reserved: int
    """Sum of the segments, equal to ``reserved_bytes.all.current``."""
    named: int
    """Sum of the allocated blocks that contain a storage, each once."""
    outside: int
    """Bytes of storages that lie in no segment."""
    parts: tuple[Part, ...]
    blocks: tuple[UnnamedBlock, ...]
    """The largest allocated blocks without a storage, at most :data:`MAX_BLOCKS`."""
    block_count: int
    """Number of allocated blocks without a storage."""


def account(
    segments: Iterable[Segment],
    index: int,
    storages: Iterable[Range],
    workspaces: Set[int],
) -> Account:
    """Match a device's blocks with storages.

    Args:
        segments: of all devices.
        index: the device's number.
        storages: memory of its tensors; may overlap, and may lie outside the allocator.
        workspaces: known sizes of libraries' workspaces on this device.

    Raises:
        KeyError, TypeError, ValueError: the segments are not of the form described above.
    """
    own = [segment for segment in segments if segment["device"] == index]
    ranges = _union(storages)
    blocks = sorted(allocated_blocks(own), key=lambda block: block.start)
    covered = _overlaps(ranges, [(block.start, block.start + block.size) for block in blocks])
    named = sum(block.size for block, used in zip(blocks, covered, strict=True) if used)
    nameless = [block for block, used in zip(blocks, covered, strict=True) if not used]
    nameless.sort(key=lambda block: (-block.size, block.start))
    held = sorted((seg["address"], seg["address"] + seg["total_size"]) for seg in own)
    return Account(
        allocated=sum(block.size for block in blocks),
        reserved=sum(segment["total_size"] for segment in own),
        named=named,
        outside=sum(end - start for start, end in ranges) - sum(_overlaps(ranges, held)),
        parts=(_rounding(named - sum(covered)), *_cached(own), *_private(own)),
        blocks=tuple(_unnamed_block(block, workspaces) for block in nameless[:MAX_BLOCKS]),
        block_count=len(nameless),
    )


class Block(NamedTuple):
    """An allocated block."""

    device: int
    start: int
    size: int
    requested: int
    frames: Sequence[Mapping[str, Any]]
    private: bool


def allocated_blocks(segments: Iterable[Segment]) -> Iterator[Block]:
    """Yield the allocated blocks of segments."""
    for segment in segments:
        device, address = segment["device"], segment["address"]
        private = _is_private(segment)
        for block in segment["blocks"]:
            size = block["size"]
            if block["state"] == _ALLOCATED:
                requested = block.get("requested_size", size)
                frames = block.get("frames", ())
                yield Block(device, address, size, requested, frames, private)
            address += size


def _is_private(segment: Segment) -> bool:
    return tuple(segment.get("segment_pool_id", _SHARED_POOL)) != _SHARED_POOL


def _union(ranges: Iterable[Range]) -> list[Range]:
    """Return the union of ranges, in order and without overlap."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _overlaps(ranges: Sequence[Range], places: Sequence[Range]) -> list[int]:
    """Return how many bytes of each place the ranges cover; both are in order, without overlap."""
    found = [0] * len(places)
    place = 0
    for start, end in ranges:
        while place < len(places) and places[place][1] <= start:
            place += 1
        reached = place
        while reached < len(places) and places[reached][0] < end:
            first, last = places[reached]
            found[reached] += min(end, last) - max(start, first)
            reached += 1
        place = max(place, reached - 1)
    return found


def _rounding(nbytes: int) -> Part:
    return Part(
        "named",
        "rounding",
        "rounding",
        nbytes,
        "what these blocks have beyond the storages in them: sizes are rounded up to 512 B, and "
        "up to 1 MiB that is left of a large block is not split off",
    )


def _cached(segments: Sequence[Segment]) -> Iterator[Part]:
    """Yield the parts of ``cached``; all but ``largest_free`` add up to it."""
    waiting = split = releasable = private = largest = 0
    for segment in segments:
        used = waits = biggest = 0
        for block in segment["blocks"]:
            if block["state"] == _ALLOCATED:
                used += block["size"]
            elif block["state"] == _FREE:
                biggest = max(biggest, block["size"])
            else:
                waits += block["size"]
        free = segment["total_size"] - used - waits
        waiting += waits
        if _is_private(segment):
            private += free
            continue
        largest = max(largest, biggest)
        if used or waits:
            split += free
        else:
            releasable += free
    expandable = any(segment.get("is_expandable") for segment in segments)
    yield from _cached_terms(largest, releasable, split, expandable)
    if private:
        why = "free within private pools: only their CUDA graphs or torch.cuda.MemPool can use it"
        yield Part("cached", "private_free", "free in private pools", private, why)
    if waiting:
        why = "freed by the program, but a stream that record_stream named may still use it"
        yield Part("cached", "waiting", "waiting for a stream", waiting, why)


def _cached_terms(largest: int, releasable: int, split: int, expandable: bool) -> Iterator[Part]:
    yield Part(
        "cached",
        "largest_free",
        "largest free block",
        largest,
        "the largest request that could be met without the driver; it is a part of the others "
        "here, not in addition to them",
    )
    why = "segments of which nothing is in use: empty_cache() gives them back to the driver"
    yield Part("cached", "releasable", "releasable", releasable, why)
    why = "free blocks of segments that are partly in use: they cannot go back to the driver"
    if expandable:
        why += ", but for whole pages (2 or 20 MiB) of expandable segments"
    yield Part("cached", "inactive_split", "in split segments", split, why)


def _private(segments: Iterable[Segment]) -> Iterator[Part]:
    private = sum(segment["total_size"] for segment in segments if _is_private(segment))
    if private:
        why = "segments that CUDA graphs or torch.cuda.MemPool have to themselves, used or free"
        yield Part("reserved", "private_pools", "private pools", private, why)


def _unnamed_block(block: Block, workspaces: Set[int]) -> UnnamedBlock:
    frames = [
        SourceLine(str(frame["filename"]), int(frame["line"]), str(frame["name"]))
        for frame in block.frames
    ]
    user_depth = next((depth for depth, line in enumerate(frames) if _is_user_code(line)), None)
    known = ["in a private pool"] if block.private else []
    if user_depth is None and block.requested in workspaces:
        known.append("has the size of a cuBLAS workspace")
    return UnnamedBlock(
        address=block.start,
        nbytes=block.size,
        born=None if user_depth is None else frames[user_depth],
        stack=tuple(frames if user_depth is None else frames[user_depth + 1 :]),
        what=", ".join(known) or None,
    )


def _is_user_code(line: SourceLine) -> bool:
    name = line.filename
    # code typed at a prompt has a name such as <stdin>; frames of C++ name no Python file
    is_python = line.lineno > 0 and (name.endswith(".py") or name.startswith("<"))
    return is_python and not is_foreign(name)
