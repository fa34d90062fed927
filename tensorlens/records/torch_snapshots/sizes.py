"""Rounding of requests and splitting of blocks in torch's caching allocator.

From ``c10/cuda/CUDACachingAllocator.cpp`` (``round_size``, ``should_split``) and
``c10/core/AllocatorConfig.h`` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_BLOCK = 512
"""Every block is a multiple of so many bytes (``kMinBlockSize``)."""
SMALL = 1 << 20
"""The largest request that the small pool serves (``kSmallSize``)."""
SMALL_SEGMENT = 2 << 20
"""Bytes of a segment of the small pool (``kSmallBuffer``)."""

_POWERS = 16


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of ``PYTORCH_CUDA_ALLOC_CONF`` that change sizes."""

    divisions: Sequence[int] = ()
    """``roundup_power2_divisions`` for sizes from 1 MiB on, 2 MiB on and so forth."""
    max_split: int | None = None
    """Blocks of at least so many bytes are never split."""
    expandable: bool = False

    @classmethod
    def of(cls, settings: Any) -> Rules:
        """Return the rules that a snapshot's ``allocator_settings`` tell; the usual ones if none.

        What is there in another form than torch writes is passed over.
        """
        if not isinstance(settings, Mapping):
            return cls()
        table = settings.get("roundup_power2_divisions")
        known = table if isinstance(table, Mapping) else {}
        parts = [known.get(str(1 << power)) for power in range(_POWERS)]
        divisions = tuple(part if type(part) is int and part > 0 else 0 for part in parts)
        limit = settings.get("max_split_size")
        return cls(
            divisions=divisions if any(divisions) else (),
            max_split=limit if type(limit) is int and limit > 0 else None,
            expandable=settings.get("expandable_segments") is True,
        )

    def rounded(self, size: int) -> int:
        """Return the bytes of the smallest block that serves a request."""
        if size < MIN_BLOCK:
            return MIN_BLOCK
        if self.divisions:
            power = min(max(size.bit_length() - 21, 0), len(self.divisions) - 1)
            divisions = self.divisions[power]
            if divisions > 1 and size > MIN_BLOCK * divisions:
                return _divided(size, divisions)
        return -(-size // MIN_BLOCK) * MIN_BLOCK

    def splits(self, size: int, remainder: int, *, small: bool, expandable: bool) -> bool:
        """Tell whether the remainder of a free block is kept for other requests."""
        if small or expandable or self.expandable:
            return remainder >= MIN_BLOCK
        return (self.max_split is None or size < self.max_split) and remainder > SMALL


def _divided(size: int, divisions: int) -> int:
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor >> (divisions.bit_length() - 1)
    if step == 0:
        return floor << 1
    return -(-size // step) * step
