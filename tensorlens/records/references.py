"""Paths of references to an object, from a root that a person can act on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reference:
    """One reference on the path from a root to the object."""

    kind: str
    """``global``, ``attribute``, ``class attribute``, ``item``, ``key``, ``local``, ``closure``,
    ``default``, ``function attribute``, ``frame``, ``generator``, ``coroutine``, ``exception``,
    ``traceback``, ``cache``, ``queue``, ``future``, ``hook``, ``optimizer state``, ``graph``,
    ``saved``, ``unknown`` and similar."""
    text: str
    """Text for a person: ``Trainer.history (attribute)``, ``list[412]``, ``grad_fn``."""
    type: str = ""
    """Type of the object that is referred to."""
    length: int | None = None
    """Number of items of a container."""
    limit: int | None = None
    """Greatest number of items: the ``maxlen`` of a deque or a cache; None without a limit."""
    spare: int | None = None
    """Number of equal items at one end of a list or dict, as in ``[None] * 100``."""


@dataclass(frozen=True, slots=True)
class ReferencePath:
    """A chain of references from a root that a person can act on."""

    references: tuple[Reference, ...]
    """Outermost first."""
    is_cut: bool = False
    """Whether the path could not be followed to a root."""

    def __str__(self) -> str:
        return " -> ".join(reference.text for reference in self.references)
