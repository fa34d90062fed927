"""What a program hears when it asks how much memory of the card is in use."""

from __future__ import annotations

from typing import Protocol


class Meter(Protocol):
    """Answers for the devices; each is a number, and sizes are bytes."""

    def allocated(self, device: int) -> int:
        """Return what is handed out now."""

    def peak_allocated(self, device: int) -> int:
        """Return the most that was handed out since the peak was last reset."""

    def reserved(self, device: int) -> int:
        """Return what the allocator holds now."""

    def peak_reserved(self, device: int) -> int:
        """Return the most that the allocator held since the peak was last reset."""

    def reset_peak(self, device: int) -> None:
        """Begin new peaks."""

    def empty_cache(self) -> None:
        """Note that the program gives cached memory back."""


class NoMeter:
    """Nobody measures: everything is 0."""

    def allocated(self, device: int) -> int:
        """Return 0."""
        return 0

    peak_allocated = reserved = peak_reserved = allocated

    def reset_peak(self, device: int) -> None:
        """Do nothing."""

    def empty_cache(self) -> None:
        """Do nothing."""
