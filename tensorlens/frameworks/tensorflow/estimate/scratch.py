"""What a kernel takes for itself while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that no tensor of the graph has."""

    nbytes: int
    """The likeliest, where that depends on the device."""
    name: str
    """What it is: ``cuDNN workspace``."""
    least: int = -1
    most: int = -1
    """The bounds; -1: exactly so much."""
    before: bool = False
    """Whether it is taken before the results are."""
