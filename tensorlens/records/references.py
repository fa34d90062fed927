"""Paths of references: who holds an object, from a root that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference on the path from where a name begins to what is kept."""

    kind: str
    """``global``, ``attribute``, ``class attribute``, ``item``, ``key``, ``local``, ``closure``,
    ``default``, ``function attribute``, ``frame``, ``generator``, ``coroutine``, ``exception``,
    ``traceback``, ``cache``, ``queue``, ``future``, ``hook``, ``optimizer state``, ``graph``,
    ``saved``, ``unknown`` and similar."""
    text: str
    """Text for a person: ``Trainer.history (attribute)``, ``list[412]``, ``grad_fn``."""
    type: str = ""
    """The type of what is referred to."""
    length: int | None = None
    """How many items a container has."""
    limit: int | None = None
    """How many it can have: a deque's or a cache's ``maxlen``; None without a limit."""
    spare: int | None = None
    """How many places at one end of a list or dict all hold the same, as in ``[None] * 100``."""


@dataclass(frozen=True, slots=True)
class ReferencePath:
    """A chain of references from a root that a person can act on."""

    references: tuple[Reference, ...]
    """Outermost first."""
    is_cut: bool = False
    """Whether the path to a root could not be followed to its beginning."""

    def __str__(self) -> str:
        return " -> ".join(reference.text for reference in self.references)
