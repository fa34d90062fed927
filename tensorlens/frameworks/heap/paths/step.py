"""One reference of a way, as it is read from the objects."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.records.leaks import Reference


@dataclass(frozen=True, slots=True)
class Step:
    """A reference, or None for what adds nothing to read, and how many objects it leads on."""

    reference: Reference | None
    taken: int = 1
    begins: bool = False
    """Whether it says where it is, so that the name of what holds it adds nothing."""
    begins_at: int = 0
    """Which of the objects is what it begins with."""
    begins_anew: bool = False
    """Whether nothing that came before adds anything."""
