"""What TensorFlow's BFC allocator is made with, on the CPU and on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.errors import UsageError

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BFCSettings:
    """What ``BFCAllocator::Options`` and its memory limit say.

    Raises:
        UsageError: there is no limit and something that is counted from it.
    """

    limit: int | None = None
    """Bytes that all regions together may have; None: no end, which TensorFlow never has and an
    estimate for an unknown card needs."""
    allow_growth: bool = True
    """Regions are taken as they are needed; else one of the whole limit at the first request."""
    garbage_collection: bool = False
    """Regions without a chunk in use go back before a request fails."""
    fragmentation_fraction: float = 0.0
    """A chunk may exceed its request by less than this share of the limit; 0: by less than 128
    MiB."""

    def __post_init__(self) -> None:
        if self.limit is None and (not self.allow_growth or self.fragmentation_fraction > 0):
            raise UsageError("a BFC allocator without a limit has to grow, in steps of its own")
        if self.limit is not None and self.limit < 0:
            raise UsageError(f"a BFC allocator cannot have {self.limit} bytes")

    @property
    def max_spare(self) -> int:
        """Bytes beyond the request from which on a chunk is split in any case."""
        if self.limit is not None and self.fragmentation_fraction > 0:
            return int(self.fragmentation_fraction * self.limit)
        return 128 * _MIB
