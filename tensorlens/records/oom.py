"""A failed allocation: the request, its origin, and the graphs that autograd kept then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlens.records.logs.events import Phase
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True)
class Request:
    """A refused request for memory."""

    device: str | None
    """Device as torch spells it; None if the error does not tell."""
    nbytes: int | None
    """Requested bytes; None if the error does not tell."""
    text: str
    """The error's own words, one line."""
    exact: bool = True
    """Whether ``nbytes`` is exact: an accelerator's error rounds it to two decimals of a unit."""
    line: SourceLine | None = None
    """Requesting line; in backward the forward line, if a recording knows it."""
    source: str | None = None
    """The text of that line."""
    module: str | None = None
    """Path of the running module, if recorded."""
    op: str | None = None
    """Outermost requesting operator, if recorded."""
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """A connected component of autograd's graph, and the storages that it saved for backward."""

    newest: int
    """autograd's number of its newest node; later nodes have higher numbers."""
    saved: frozenset[int]
    """Addresses of the storages that its nodes saved."""
    holders: tuple[int, ...]
    """Addresses of the storages of the tensors in Python that keep it alive."""


def array_nbytes(error: Any) -> int | None:
    """Return the bytes of the array that NumPy could not allocate; None if the error is another."""
    try:
        nbytes = int(error.dtype.itemsize)
        for length in error.shape:
            nbytes *= int(length)
    except (AttributeError, TypeError, ValueError):
        return None
    return nbytes
