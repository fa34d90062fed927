"""Names of memory that only TensorFlow's runtime holds, by the nodes that allocated it.

Constants that the kernels of a function's graph keep, elements that datasets have made ahead,
tables, and what a graph that runs on another thread has made so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.census_table import Births
from tensorlens.frameworks.native.allocator import NativeAllocator, Tagged
from tensorlens.frameworks.tensorflow.graphs import Nodes
from tensorlens.frameworks.tensorflow.graphs.functions import is_of_dataset, plain_name
from tensorlens.frameworks.tensorflow.graphs.names import plain_names
from tensorlens.frameworks.tensorflow.native import BUILDING
from tensorlens.records.families import KEPT
from tensorlens.records.ledger import Block
from tensorlens.records.tensors import ROLES, TensorTable

_UNTYPED = "bytes"
"""Stands for the type of an element where only the size of the memory is known."""
_ELEMENT = "made for a dataset, which holds it ahead or in its cache"
_TABLE = "what a table has for its keys and values"
_RUNNING = "made by a graph and not released so far"
_ITSELF = ("Dataset", "Iterator")
_TABLES = "HashTable"
_CALL = "StatefulPartitionedCall/"
_ACTIVATIONS = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Found:
    """What a block is. Names below a ``base`` are told together."""

    base: str
    key: str | None
    role: str
    note: str
    module: str | None = None


class RuntimeBlocks:
    """Puts blocks that are known by their nodes into a table."""

    def __init__(self, tagged: Tagged, allocator: NativeAllocator, births: Births) -> None:
        self._tagged, self._allocator, self._births = tagged, allocator, births
        self._nodes: Nodes | None = None
        self._known: dict[tuple[int, int, bool], Found | None] = {}
        self.named = 0
        """Bytes of the blocks that were put into the table."""
        self.others: list[Block] = []
        """Blocks of which no more is known than the operation that made them."""

    def add_to(self, table: TensorTable) -> None:
        """Add a row for each block whose node tells what it is."""
        columns = (self._tagged.address, self._tagged.size, self._tagged.birth)
        lines: dict[int, int] = {-1: -1}
        bases: dict[str, int] = {}
        for address, size, birth, node, function in zip(
            *columns, self._tagged.node, self._tagged.function, strict=True
        ):
            key = node, function, birth >= 0
            if key not in self._known:
                self._known[key] = self._find(*key)
            found = self._known[key]
            if found is None:
                line = self._births.line(birth) if birth >= 0 else None
                what = f"made by {self._allocator.node_name(node)}"
                self.others.append(Block(address, size, line, what=what))
                continue
            if birth not in lines:
                lines[birth] = len(table.lines)
                table.lines.append(self._births.line(birth))
            if found.base not in bases:
                bases[found.base] = table.names.text(found.base)
            name = bases[found.base]
            name = name if found.key is None else table.names.key(name, found.key)
            _append(table, address, size, name, found, lines[birth])
            self.named += size

    def _find(self, number: int, calling: int, on_python: bool) -> Found | None:
        node = self._allocator.node_name(number)
        function = self._allocator.node_name(calling) if calling >= 0 else None
        if node.startswith(BUILDING):
            graph = plain_name(node.removeprefix(BUILDING))
            return Found(f"shapes of {graph}", None, "other", KEPT)
        if _TABLES in node:
            return Found(f"table: {node}", None, "other", _TABLE)
        if any(word in node for word in _ITSELF):
            return Found(f"dataset: {node}", None, "input", _ELEMENT)
        is_folded = sum(1 for _ in plain_names(node)) > 1
        if function is None and on_python and "/" not in node:
            # an operation that Python has run itself, known by its type
            return None
        if self._nodes is None:
            self._nodes = Nodes()
        homes = self._nodes.homes(node, function)
        if homes and all(is_of_dataset(home) for home, _ in homes):
            return _of_dataset(node, homes, is_folded)
        if not homes and not is_folded:
            return None
        if is_folded or all(op == "Const" for _, op in homes):
            base = function or (homes[0][0] if len(homes) == 1 else None)
            text = "constants of a graph" if base is None else f"constants of {plain_name(base)}"
            return Found(text, _short(node), "other", KEPT)
        origin = self._nodes.find(node, function)
        if origin is None or function is None:
            return None
        if origin.layer and origin.phase in _ACTIVATIONS:
            role = "activation" if origin.phase == "forward" else "other"
            text = f"{origin.layer}: {origin.op or node}"
            return Found(text, None, role, _RUNNING, module=origin.layer)
        return Found(f"kept by {plain_name(function)}", _short(node), "other", KEPT)


def _short(node: str) -> str:
    """Return a node's name without the calls that were inlined around it."""
    while node.startswith(_CALL):
        node = node.removeprefix(_CALL)
    return node


def _of_dataset(node: str, homes: list[tuple[str, str]], is_folded: bool) -> Found:
    function = f" of {plain_name(homes[0][0])}" if len(homes) == 1 else ""
    if is_folded or all(op == "Const" for _, op in homes):
        return Found(f"dataset: constants{function}", node, "input", KEPT)
    return Found(f"dataset: {node}{function}", None, "input", _ELEMENT)


def _append(
    table: TensorTable, address: int, size: int, name: int, found: Found, line: int
) -> None:
    table.nbytes.append(size)
    table.storage.append(address)
    table.storage_nbytes.append(size)
    table.offset.append(0)
    table.role.append(ROLES.index(found.role))
    table.device.append(_number(table.devices, "cpu"))
    table.dtype.append(_number(table.dtypes, _UNTYPED))
    table.shape.append(_number(table.shapes, (size,)))
    table.stride.append(-1)
    table.name.append(name)
    table.alias.append(-1)
    table.held_by.append(-1)
    table.born.append(line)
    table.module.append(-1 if found.module is None else table.names.text(found.module))
    table.note.append(_number(table.notes, found.note))


def _number(items: list[Any], item: Any) -> int:
    # they are few
    if item not in items:
        items.append(item)
    return items.index(item)
