"""Segments for blocks whose segments nobody knows, as a viewer of segments needs some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tensorlens.records.events import FREE, EventLog, Segment, SegmentBlock

_GAP = 1 << 20
"""Blocks no further apart share a segment."""


def made_up_segments(log: EventLog) -> list[Segment]:
    """Return segments around the blocks that lie in none of the log's.

    Together with ``log.segments`` they list every block that is there at the end. On a device
    without any segment they also cover the addresses of those that are not.
    """
    made: list[Segment] = []
    for number, device in enumerate(log.devices):
        known = [each for each in log.segments if each.device == device]
        listed = {
            block.address
            for each in known
            for block in each.blocks
            if block.state == "active_allocated"
        }
        rows = [
            row
            for row, (kind, here) in enumerate(zip(log.kind, log.device, strict=True))
            if kind < FREE and here == number
        ]
        there = [row for row in rows if log.pair[row] < 0 and log.address[row] not in listed]
        covered = there if known else rows
        spans = {(log.address[row], log.address[row] + log.size[row]) for row in covered}
        blocks = [_block(log, row) for row in sorted(there, key=log.address.__getitem__)]
        made += _areas(device, sorted(spans), blocks)
    return made


def _block(log: EventLog, row: int) -> SegmentBlock:
    size = log.size[row]
    return SegmentBlock(log.address[row], size, size, "active_allocated", log.stack[row])


def _areas(
    device: str, spans: Sequence[tuple[int, int]], blocks: Sequence[SegmentBlock]
) -> Iterator[Segment]:
    waiting = list(reversed(blocks))
    for address, end in _joined(spans):
        tiles: list[SegmentBlock] = []
        place = address
        while waiting and waiting[-1].address < end:
            block = waiting.pop()
            if block.address < place:
                # two at one address: one of their frees is missing
                yield Segment(device, block.address, block.size, blocks=(block,))
                continue
            tiles += _free(place, block.address)
            tiles.append(block)
            place = block.address + block.size
        tiles += _free(place, end)
        yield Segment(device, address, end - address, blocks=tuple(tiles))


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    address = end = -1
    for start, stop in spans:
        if address >= 0 and start <= end + _GAP:
            end = max(end, stop)
            continue
        if address >= 0:
            yield address, end
        address, end = start, stop
    if address >= 0:
        yield address, end


def _free(start: int, end: int) -> list[SegmentBlock]:
    return [SegmentBlock(start, end - start, 0, "inactive")] if start < end else []
