"""Gives every row its one best name, and its role.

In this order: its path in a model or an optimizer; the variable, attribute or container that holds
it; the line that made it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.given_names import Given
from tensorlens.frameworks.heap import anchors, hold
from tensorlens.frameworks.jax.census.find import Heap
from tensorlens.frameworks.jax.census.rows import Rows
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.layers import LayerNames
from tensorlens.frameworks.keras.optimizers import OptimizerNames
from tensorlens.records.names import Names

_INTERNAL = ("jax", "jaxlib", "keras")
_SHARDS = "addressable_shards"
_CONSTANTS = "['jaxpr']._consts["
_CLOSED_OVER = "constants of compiled functions"


class NamedRows:
    """Names the rows, and fills in their roles and modules."""

    def __init__(self, heap: Heap, rows: Rows, roots: Sequence[Root]) -> None:
        self.names = Names()
        self._heap, self._rows = heap, rows
        self._given = Given(rows)
        self._constants: list[int] = []
        self._layers = LayerNames(self.names, self._given.give)
        self._optimizers = OptimizerNames(self.names, self._given.give, self._given.node_of)
        self._name_owned(roots)
        self._ask_holders(roots)
        self._name_shards()

    def _name_owned(self, roots: Sequence[Root]) -> None:
        """Name what layers, metrics, seed generators and optimizers hold."""
        heap = self._heap
        self._layers.add_roots(roots)
        self._layers.add_layers(heap.layers)
        self._layers.add_metrics(heap.metrics)
        self._layers.add_seed_generators(heap.seed_generators)
        self._optimizers.add_all(heap.optimizers, roots)
        slots = self._optimizers.given
        self._layers.add_variables(each for each in heap.variables if id(each) not in slots)

    def _ask_holders(self, roots: Sequence[Root]) -> None:
        """Name what is left by the variable, attribute or container that holds it."""
        rows = self._rows.all
        wanted = [number for number, row in enumerate(rows) if row.name < 0 and not row.fact.shard]
        if not wanted:
            return
        layers = {each: self.names.text(path) for each, path in self._layers.paths.items()}
        held = hold(
            self._heap.objects,
            array("Q", (rows[number].owner for number in wanted)),
            anchors(_INTERNAL),
            self.names,
            named={**layers, **self._optimizers.anchors, **self._places(roots)},
        )
        of_optimizers = {self.names.values[node] for node in self._optimizers.anchors.values()}
        for number, node in zip(wanted, held, strict=True):
            rows[number].name = self._constant(node) if self._is_constant(node) else node
            if node >= 0 and self.names.values[self.names.root(node)] in of_optimizers:
                rows[number].role = "optimizer"

    def _is_constant(self, node: int) -> bool:
        """Tell whether a name is where JAX keeps what a compiled function has closed over."""
        return node >= 0 and _CONSTANTS in self.names[node]

    def _constant(self, node: int) -> int:
        self._constants.append(node)
        return self.names.index(self.names.text(_CLOSED_OVER), len(self._constants) - 1)

    def _places(self, roots: Sequence[Root]) -> dict[int, int]:
        """Return the nodes that names below other roots begin with."""
        found: dict[int, int] = {}
        for root in roots:
            known = id(root.item) in self._optimizers.anchors
            if not known and not issubclass(type(root.item), kinds.layer()):
                text = kinds.class_name(root.item) if root.name is None else root.name
                found[id(root.item)] = self.names.text(text)
        return found

    def _name_shards(self) -> None:
        """Name each device's part of an array, the first one as well."""
        rows = self._rows.all
        for number, row in enumerate(rows):
            if row.name < 0 or row.fact.shard != 0:
                continue
            shards = self.names.attribute(row.name, _SHARDS)
            for place, other in enumerate((number, *self._rows.shards(number))):
                rows[other].name = self.names.index(shards, place)
                rows[other].role, rows[other].note = row.role, row.note
