"""A block that survived its step, and the objects that hang below tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tensorlens.frameworks.advice import TORCH, Words
from tensorlens.records.references import Reference
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """An object that Python holds, and the way from it to a block that Python does not see."""

    item: Any
    """A tensor, or a node of autograd's."""
    references: tuple[Reference, ...]
    """``grad_fn``, ``GeluBackward0.self``; the last one refers to a tensor of the block."""


@dataclass(frozen=True, slots=True, eq=False)
class Survivor:
    """A block, and all that is known to keep it alive. It holds the objects it names."""

    address: int
    size: int
    """Bytes of the storage; where none is known those of the block, 0 if neither is."""
    tensors: tuple[Any, ...] = ()
    """The tensors that Python holds and that show a part of it: itself, views, aliases."""
    arrays: tuple[Any, ...] = ()
    """NumPy arrays with memory in it."""
    holders: tuple[Holder, ...] = ()
    """Other objects that Python holds and the block hangs below, nearest first: the tensor whose
    gradient or part it is, the root of a graph that saved it."""
    role: str = "other"
    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    shown: int = 0
    """Bytes of the largest tensor or array that shows it, less than ``size`` for views alone."""
    grad_fn: str | None = None
    """The node that made one of ``tensors``."""
    words: Words = TORCH
    """How those write who made it."""

    @property
    def item(self) -> Any:
        """The object whose holders are to be found; None where there is none."""
        held = (*self.tensors, *self.arrays, *(each.item for each in self.holders))
        return next(iter(held), None)

    @property
    def is_held_unseen(self) -> bool:
        """Whether nothing is known to hold it: something outside of Python does."""
        return not any((self.tensors, self.arrays, self.holders))


@dataclass(frozen=True, slots=True)
class GraphRoot:
    """A tensor or a node that blocks hang below."""

    address: int
    """Of its storage; 0 where it has none."""
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    storage_nbytes: int
    grad_fn: str | None


@dataclass(frozen=True, slots=True)
class Retained:
    """Memory that hangs below some tensors."""

    bytes: int
    tensors: int
    """Storages, each counted once."""
    references: tuple[Reference, ...]
    """``grad_fn``, ``12 saved activations``; none where nothing hangs there."""
    blocks: tuple[tuple[int, int, str], ...] = ()
    """Address, bytes and role of each of them."""
    nodes: int = 0
    """Nodes of autograd's graph, without those of parameters, which all graphs share."""


@dataclass(frozen=True, slots=True, eq=False)
class GrowingGraph:
    """A live tensor whose graph gets deeper in each step. It holds the tensor."""

    tensor: Any
    nodes_per_step: float
    line: SourceLine | None
    """The line that made the tensor, if known."""
    is_number: bool


class Holdings(Protocol):
    """Result of one look at the heap; only the survivors refer to the program's objects."""

    survivors: list[Survivor]
    """One for each address asked for, in order."""

    def root(self, item: Any) -> GraphRoot:
        """Return what is known of one of the survivors' holders."""
        ...

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        """Return what is kept alive because of ``roots`` alone, beside themselves.

        ``group`` are tensors that do not count as others: the rest of a leak.
        """
        ...
