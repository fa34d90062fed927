"""A change that may save memory, with what it would come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tensorlens.planning.suggest.recorded_steps import Scene
from tensorlens.planning.suggest.result import REPLAYED

Act = Callable[[Callable[[], Any]], Any]
"""Is called with ``make_step``, in the process of the program, and returns the step."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One change."""

    kind: str
    """One of :data:`tensorlens.planning.suggest.result.KINDS`."""
    change: str
    """What it is, in a few words: ``checkpoint 6 blocks``."""
    what: str
    """Blocks, tensor or optimizer that it is about, with the line where one is known."""
    code: str
    """What to write."""
    peak: int
    """What would be handed out at most, or of another memory be there."""
    cost: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    """Of :func:`tensorlens.compare`, where it has this change built in."""
    act: Act | None = None
    """What else does it from outside of the program."""
    how: str = REPLAYED
    memory: str = ""
    """Where the bytes are, if they are not at the peak: ``shared memory``."""
    before: int | None = None
    """What there is at most of that memory now."""


Finder = Callable[[Scene], Iterator[Candidate]]
"""Finds the changes of one kind."""
