"""Names of memory that only TensorFlow's runtime holds, by the nodes that allocated it.

Constants that the kernels of a function's graph keep, elements that datasets have made ahead,
tables, and what a graph that runs on another thread has made so far.
"""

from __future__ import annotations

from typing import Any

from tensorlens.frameworks.census.table import Births
from tensorlens.frameworks.native.allocator import NativeAllocator, Tagged
from tensorlens.frameworks.tensorflow.graphs import Nodes
from tensorlens.frameworks.tensorflow.graphs.titles import Title, title, title_of_built
from tensorlens.frameworks.tensorflow.native import BUILDING
from tensorlens.records.ledger import Block
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES

_UNTYPED = "bytes"
"""Stands for the type of an element where only the size of the memory is known."""


class RuntimeBlocks:
    """Puts blocks that are known by their nodes into a table."""

    def __init__(self, tagged: Tagged, allocator: NativeAllocator, births: Births) -> None:
        self._tagged, self._allocator, self._births = tagged, allocator, births
        self._nodes = Nodes()
        self._known: dict[tuple[int, int, int, bool], Title | None] = {}
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
            key = node, function, size, birth >= 0
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

    def _find(self, number: int, calling: int, nbytes: int, by_python: bool) -> Title | None:
        node = self._allocator.node_name(number)
        function = self._allocator.node_name(calling) if calling >= 0 else None
        if node.startswith(BUILDING):
            return title_of_built(node.removeprefix(BUILDING))
        return title(self._nodes, node, function, nbytes, by_python=by_python)


def _append(
    table: TensorTable, address: int, size: int, name: int, found: Title, line: int
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
    table.model_line.append(-1)
    table.module.append(-1 if found.module is None else table.names.text(found.module))
    table.note.append(_number(table.notes, found.note))


def _number(items: list[Any], item: Any) -> int:
    # they are few
    if item not in items:
        items.append(item)
    return items.index(item)
