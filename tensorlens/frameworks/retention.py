"""Retention of a block: the objects that keep it alive after its step, and memory below tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tensorlens.frameworks.base import TORCH, AdviceWords
from tensorlens.records.references import Reference
from tensorlens.records.tensors import SourceLine


@dataclass(frozen=True, slots=True, eq=False)
class Survivor:
    """A live block and its known holders. It refers to these objects."""

    address: int
    size: int
    """Bytes of the storage; of the block if no storage is known; 0 if neither is."""
    tensors: tuple[Any, ...] = ()
    """Tensors held by Python that show a part of it: itself, views, aliases."""
    arrays: tuple[Any, ...] = ()
    """NumPy arrays with memory in it."""
    holders: tuple[Holder, ...] = ()
    """Other objects held by Python that the block hangs below, nearest first: the tensor whose
    gradient or part it is, the root of a graph that saved it."""
    role: str = "other"
    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    shown: int = 0
    """Bytes of the largest tensor or array that shows it; less than ``size`` for views alone."""
    grad_fn: str | None = None
    """The node that made one of ``tensors``."""
    words: AdviceWords = TORCH
    """Words of the framework that made it."""

    @property
    def item(self) -> Any:
        """The object whose holders are searched for; None if there is none."""
        held = (*self.tensors, *self.arrays, *(each.item for each in self.holders))
        return next(iter(held), None)

    @property
    def is_below(self) -> bool:
        """Whether Python holds no tensor or array of it, only something that it hangs below."""
        return bool(self.holders) and not (self.tensors or self.arrays)

    @property
    def is_held_unseen(self) -> bool:
        """Whether no holder is known: something outside of Python holds it."""
        return not any((self.tensors, self.arrays, self.holders))


@dataclass(frozen=True, slots=True, eq=False)
class Holder:
    """An object that Python holds, and the path from it to a block that Python does not see."""

    item: Any
    """A tensor, or a node of autograd's graph."""
    references: tuple[Reference, ...]
    """``grad_fn``, ``GeluBackward0.self``; the last one refers to a tensor of the block."""
    described: Survivor = Survivor(0, 0)
    """The item, described as a block; its address is 0 if it has no storage."""


class LeftBlock(NamedTuple):
    """A block that a step left behind."""

    address: int
    size: int
    """Bytes that were asked for, if known."""
    birth: int
    """Number of the line that allocated it; negative if unknown."""
    step: int
    """Number of the step that made it."""
    rounded_size: int
    """Bytes in the allocator's figures: an accelerator's rounds up."""
    survivor: Survivor = Survivor(0, 0)
    """Its holders; nothing is known of them until the heap is searched."""


@dataclass(frozen=True, slots=True)
class Retained:
    """Memory that hangs below some tensors."""

    bytes: int
    tensors: int
    """Number of storages, each counted once."""
    references: tuple[Reference, ...]
    """``grad_fn``, ``12 saved activations``; empty if nothing hangs there."""
    blocks: tuple[tuple[int, int, str], ...] = ()
    """Address, bytes and role of each block."""
    nodes: int = 0
    """Nodes of autograd's graph, without those of parameters, which all graphs share."""


@dataclass(frozen=True, slots=True, eq=False)
class GrowingGraph:
    """A live tensor whose graph gets deeper in each step. It refers to the tensor."""

    tensor: Any
    nodes_per_step: float
    line: SourceLine | None
    """The line that made the tensor, if known."""
    is_number: bool


class Holdings(Protocol):
    """Result of one search of the heap; only the survivors refer to the program's objects."""

    survivors: list[Survivor]
    """One for each address asked for, in order."""

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        """Return the memory that only ``roots`` keep alive, without their own.

        ``group`` are tensors that do not count as other holders: the rest of a leak.
        """
        ...
