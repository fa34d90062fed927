"""What an allocator counts, and what it says when there is no room."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.errors import TensorlensError
from tensorlens.units import format_bytes


@dataclass(frozen=True, slots=True)
class Level:
    """A figure now, and at its highest since the beginning or the last reset."""

    current: int
    peak: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What ``torch.cuda.memory_stats()`` counts, in bytes (``.all`` of each)."""

    allocated: Level
    """Of blocks handed out, remainders included: ``allocated_bytes``."""
    requested: Level
    """Asked for, of active blocks: ``requested_bytes``."""
    active: Level
    """Of blocks handed out or given back while another stream uses them: ``active_bytes``."""
    reserved: Level
    """Held from the driver: ``reserved_bytes``."""
    inactive_split: Level
    """Free, in segments that are partly in use: ``inactive_split_bytes``; as in torch without
    expandable segments."""
    segments: Level
    """How many segments: ``segment``; as in torch without expandable ones."""
    retries: int
    """How often all cached memory was given back for a request: ``num_alloc_retries``."""
    ooms: int
    """Requests that failed: ``num_ooms``."""


class OutOfMemory(TensorlensError):
    """A request that has no room in what the allocator may take; all figures are bytes."""

    exit_code = 3

    def __init__(
        self,
        *,
        device: str,
        nbytes: int,
        allocated: int,
        reserved: int,
        capacity: int | None,
        allowed: int | None,
        largest_free: int | None = None,
    ) -> None:
        self.device = device
        self.nbytes = nbytes
        """Asked for, rounded up as the allocator does."""
        self.allocated, self.reserved = allocated, reserved
        """Handed out, and held from the driver, after all that was cached went back."""
        self.capacity = capacity
        """What the driver has for the allocator; None: no end."""
        self.allowed = allowed
        """What the process may take of it; None: all."""
        self.largest_free = largest_free
        """The largest block that is free; None: not looked for."""
        limits = [limit for limit in (capacity, allowed) if limit is not None]
        unused = format_bytes(reserved - allocated)
        super().__init__(
            f"{device} has no room for {format_bytes(nbytes)}: of {format_bytes(min(limits))}"
            f" {format_bytes(allocated)} are allocated and "
            + (
                f"{unused} lie in segments that are partly in use"
                if largest_free is None
                else f"{unused} are held and free, {format_bytes(largest_free)} of it in one piece"
            )
        )

    @property
    def free(self) -> int | None:
        """What the driver had left; None: no end."""
        return None if self.capacity is None else self.capacity - self.reserved
