"""A change that may save memory, with what it would come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorlens.records.suggestions import REPLAYED
from tensorlens.suggesting.scene import Scene


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change."""

    kind: str
    """One of :data:`tensorlens.records.suggestions.KINDS`."""
    change: str
    """What it is, in a few words: ``checkpoint 6 blocks``."""
    what: str
    """Blocks, tensor or optimizer that it is about, with the line where one is known."""
    code: str
    """What to write."""
    peak: int
    """What would be handed out at most."""
    cost: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of :func:`tensorlens.compare`, where it has this change built in."""
    how: str = REPLAYED


Finder = Callable[[Scene], Iterator[Candidate]]
"""Finds the changes of one kind."""
