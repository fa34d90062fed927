"""A caching allocator as torch's, small enough to be seen to be right: it knows what it gave."""

from __future__ import annotations

from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"


@dataclass
class Held:
    """A segment and its blocks, which tile it."""

    address: int
    size: int
    small: bool
    blocks: list[Block] = field(default_factory=list)


class CachingAllocator:
    """Best fit; splits as ``should_split`` of ``CUDACachingAllocator.cpp`` has it."""

    def __init__(self) -> None:
        self.segments: list[Held] = []
        self.events: list[dict] = []
        self.given: dict[int, int] = {}
        """Number of an ``alloc`` event to the size of the block it got."""
        self._next = 1 << 40

    def malloc(self, requested: int) -> int:
        size = max(-(-requested // 512) * 512, 512)
        small = size <= MIB
        fitting = [
            (block.size, block.address, segment, block)
            for segment in self.segments
            if segment.small == small
            for block in segment.blocks
            if block.state == "inactive" and block.size >= size
        ]
        if fitting:
            segment, block = min(fitting, key=lambda each: each[:2])[2:]
        else:
            segment = self._segment(size, small)
            block = segment.blocks[0]
        remainder = block.size - size
        if remainder >= 512 if small else remainder > MIB:
            place = segment.blocks.index(block)
            segment.blocks.insert(place + 1, Block(block.address + size, remainder))
            block.size = size
        block.state, block.requested = "active_allocated", requested
        self.given[len(self.events)] = block.size
        self._event("alloc", block.address, requested)
        return block.address

    def free(self, address: int, *, waits: bool = False) -> None:
        """Give a block back; one that ``waits`` is used by another stream until completed."""
        block = self._find(address)[1]
        block.state = "active_pending_free"
        self._event("free_requested", address, block.requested)
        if not waits:
            self.complete(address)

    def complete(self, address: int) -> None:
        segment, block = self._find(address)
        self._event("free_completed", address, block.requested)
        block.state, block.requested = "inactive", 0
        merged: list[Block] = []
        for each in segment.blocks:
            if merged and each.state == merged[-1].state == "inactive":
                merged[-1].size += each.size
            else:
                merged.append(each)
        segment.blocks = merged

    def empty_cache(self) -> None:
        for segment in list(self.segments):
            if len(segment.blocks) == 1 and segment.blocks[0].state == "inactive":
                self.segments.remove(segment)
                self._event("segment_free", segment.address, segment.size)

    def live(self) -> dict[int, int]:
        """Return address to size of what is handed out."""
        blocks = (block for segment in self.segments for block in segment.blocks)
        return {each.address: each.size for each in blocks if each.state == "active_allocated"}

    def reserved(self) -> int:
        return sum(segment.size for segment in self.segments)

    def snapshot(self, since: int = 0) -> dict:
        """Return what ``torch.cuda.memory._snapshot()`` would, the trace from an event on."""
        return {
            "segments": [
                {
                    "device": 0,
                    "address": segment.address,
                    "total_size": segment.size,
                    "stream": 0,
                    "segment_type": "small" if segment.small else "large",
                    "segment_pool_id": (0, 0),
                    "is_expandable": False,
                    "frames": [],
                    "blocks": [
                        {
                            "address": block.address,
                            "size": block.size,
                            "requested_size": block.requested,
                            "state": block.state,
                            "frames": [],
                        }
                        for block in segment.blocks
                    ],
                }
                for segment in self.segments
            ],
            "device_traces": [self.events[since:]],
        }

    def _segment(self, size: int, small: bool) -> Held:
        total = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        )
        segment = Held(self._next, total, small, [Block(self._next, total)])
        # segments may follow each other without a gap
        self._next += total
        self.segments.append(segment)
        self._event("segment_alloc", segment.address, total)
        return segment

    def _find(self, address: int) -> tuple[Held, Block]:
        return next(
            (segment, block)
            for segment in self.segments
            for block in segment.blocks
            if block.address == address
        )

    def _event(self, action: str, address: int, size: int) -> None:
        now = 1_700_000_000_000_000 + len(self.events)
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": now}
        self.events.append({**event, "frames": []})
