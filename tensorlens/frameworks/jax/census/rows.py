"""The rows of a census of JAX, and which one stands for which object."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tensorlens.frameworks.found_rows import FoundRow
from tensorlens.frameworks.jax.buffers import Fact, Reader
from tensorlens.frameworks.jax.census.find import Heap
from tensorlens.frameworks.keras import kinds

_VALUES = ("_value", "_raw_value")
"""Where a variable keeps its array; with NNX in the second."""


class Rows:
    """One row for each array, and for each device of one that is on several."""

    def __init__(self, heap: Heap, reader: Reader) -> None:
        self.all: list[FoundRow[Fact]] = []
        self.of: dict[int, int] = {}
        """``id()`` of an array, a variable or a key to its first row."""
        owners = self._owners(heap)
        for fact in reader.read(heap.arrays):
            array = heap.arrays[fact.array]
            owner = owners.get(id(array), array)
            row = self.of.setdefault(id(array), len(self.all))
            self.of.setdefault(id(owner), row)
            self.all.append(FoundRow(fact, fact.device, id(owner)))
        for key in heap.keys:
            row = self.of.get(id(_base_of(key)), -1)
            if row >= 0:
                self.all[row].note = f"the numbers of {_text(key)}"
        self.unread = reader.unread

    def told(self) -> list[FoundRow[Fact]]:
        """Return the rows without the nameless that show a buffer which a row with a name shows.

        JAX makes them when the program asks an array for its parts, and the array keeps them.
        """
        named = {row.fact.address for row in self.all if row.name >= 0} - {0}
        return [row for row in self.all if row.name >= 0 or row.fact.address not in named]

    def shards(self, row: int) -> Iterator[int]:
        """Give the other rows of an array that is on several devices, after its first."""
        fact = self.all[row].fact
        if fact.shard is not None:
            for other in range(row + 1, len(self.all)):
                if self.all[other].fact.array != fact.array:
                    return
                yield other

    def _owners(self, heap: Heap) -> dict[int, Any]:
        """Return what holders know an array by, by the array's ``id()``: a variable, a key."""
        found: dict[int, Any] = {}
        for model in heap.layers:
            for variable, array in values_meanwhile(model):
                found.setdefault(id(array), variable)
        for variable in heap.variables:
            content = kinds.content_of(variable)
            for attribute in _VALUES:
                if content.get(attribute) is not None:
                    found[id(content[attribute])] = variable
        outer = ((id(_base_of(key)), key) for key in heap.keys)
        # a variable may hold a key
        return {**found, **{base: found.get(id(key), key) for base, key in outer}}


def values_meanwhile(model: Any) -> Iterator[tuple[Any, Any]]:
    """Give the variables of a model that fits, evaluates or predicts, each with its array.

    Meanwhile the variables are empty, and their arrays in lists in the same order
    (keras/src/backend/jax/trainer.py, 3.15, ``jax_state_sync``, which asks the model as it is
    asked here).
    """
    state: Any = kinds.content_of(model).get("_jax_state")
    # a layer tracks what is put into it by dicts and lists of Keras's
    if not issubclass(type(state), dict):
        return
    asked: dict[str, Callable[[], Sequence[Any]]] = {
        "trainable_variables": lambda: model.trainable_variables,
        "non_trainable_variables": lambda: model.non_trainable_variables,
        "optimizer_variables": lambda: model.optimizer.variables,
        "metrics_variables": lambda: model.metrics_variables,
    }
    for kind, ask in asked.items():
        arrays = kinds.items_of(dict.get(state, kind))
        with suppress(Exception):
            yield from zip(ask(), arrays, strict=True)


def _base_of(key: Any) -> Any:
    return getattr(key, "_base_array", None)


def _text(key: Any) -> str:
    return f"{key.dtype} {tuple(key.shape)}"
