"""An allocation that failed: what was asked for, by whom, and what autograd kept then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlens.records.logs.events import Phase
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True)
class Request:
    """A request for memory that was refused."""

    device: str | None
    """torch's spelling; None where the error does not tell."""
    nbytes: int | None
    """Bytes asked for; None where the error does not tell."""
    text: str
    """The error's own words, one line."""
    exact: bool = True
    """Whether ``nbytes`` is exact: an accelerator's error rounds it to two decimals of a unit."""
    line: SourceLine | None = None
    """The line that asked; in backward the forward line, where a recording knows it."""
    source: str | None = None
    """The text of that line."""
    module: str | None = None
    """Path of the module that ran; known where it was recorded."""
    op: str | None = None
    """The outermost operator that asked; known where it was recorded."""
    phase: Phase | None = None


@dataclass(frozen=True, slots=True)
class KeptGraph:
    """A connected component of autograd's graph, and the storages that it saved for backward."""

    newest: int
    """autograd's number of its newest node: higher for what was computed later."""
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
