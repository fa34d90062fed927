"""One search of the heap: holders of blocks of TensorFlow's memory."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorlens.frameworks.base import TENSORFLOW
from tensorlens.frameworks.retention import Holder, Retained, Survivor
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census.named_rows import NamedRows
from tensorlens.frameworks.tensorflow.census.rows import CensusRow, CensusRows, Heap, find_objects
from tensorlens.heap.paths import reference_paths
from tensorlens.heap.untracked_arrays import arrays_in, shown
from tensorlens.interpreter import paused_collector
from tensorlens.records.references import Reference
from tensorlens.roles import ROLES


class TensorflowHoldings:
    """Result of one search; only :attr:`survivors` refers to the program's objects.

    A tensor's memory is kept alive by Python's tensors and variables that show it, by arrays that
    share it, and by tapes, graphs and kernels whose content Python does not see.
    """

    def __init__(self, addresses: Sequence[int]) -> None:
        """Search for the holders of the blocks at ``addresses``."""
        with paused_collector():
            view = _HeapView(addresses)
            self.survivors = [*map(view.survivor, addresses)]
            """One for each address, in order."""
            self._handles = view.handle_sizes

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        """Return the handles of those roots that are variables; they live as long as these."""
        known = (self._handles.get(id(root)) for root in roots)
        blocks = tuple((*each, "other") for each in known if each is not None)
        return Retained(sum(size for _, size, _ in blocks), len(blocks), (), blocks)


class _HeapView:
    """The heap at one moment: to be dropped at once."""

    def __init__(self, addresses: Sequence[int]) -> None:
        heap = find_objects()
        try:
            self._rows = CensusRows(heap)
            self._names = NamedRows(heap, self._rows, ()).names
            self._sizes = cpu.block_sizes(addresses)
            arrays = arrays_in([*self._sizes.items()], heap.objects)
            self._arrays = {address: _outermost(each) for address, each in arrays.items()}
            self._rows_at: dict[int, list[int]] = {}
            for number, row in enumerate(self._rows.rows):
                if row.fact.address in self._sizes:
                    self._rows_at.setdefault(row.fact.address, []).append(number)
            self._value_of = dict(self._rows.handles)
            self._find_holders(heap)
            self._find_unheld(heap)
        finally:
            # the list contains this view
            heap.objects.clear()

    def _find_holders(self, heap: Heap) -> None:
        """Find the objects by which a user knows rows: variables rather than their handles."""
        wanted = {row for rows in self._rows_at.values() for row in rows}
        wanted.update(self._value_of[row] for row in tuple(wanted) if row in self._value_of)
        self._holders: dict[int, Any] = {}
        for item in (*heap.keras_variables, *heap.variables, *heap.tensors):
            row = self._rows.row_numbers.get(id(item), -1)
            if row in wanted:
                self._holders.setdefault(row, item)
        rows = self._rows.rows
        self.handle_sizes = {
            id(self._holders[value]): (
                rows[handle].fact.address,
                rows[handle].fact.buffer_nbytes,
            )
            for handle, value in self._value_of.items()
            if value in self._holders and rows[handle].fact.address in self._sizes
        }
        """Address and bytes of each handle that was asked for, by ``id()`` of its variable."""

    def survivor(self, address: int) -> Survivor:
        """Return what is known of the block at an address."""
        rows, size = self._rows_at.get(address, []), self._sizes[address]
        arrays = self._arrays.get(address, ())
        if not rows:
            bytes_shown = shown(arrays) if arrays else 0
            return Survivor(address, size, arrays=arrays, shown=bytes_shown, words=TENSORFLOW)
        all_rows = self._rows.rows
        row = all_rows[min(rows, key=lambda row: (ROLES.index(all_rows[row].role), row))]
        described = self._described(row)
        # a handle is held by its variable
        above = (self._holders.get(self._value_of.get(each, -1)) for each in rows)
        handle = (Reference("attribute", "its handle", "Tensor"),)
        return replace(
            described,
            address=address,
            size=size or described.size,
            tensors=tuple(
                self._holders[each]
                for each in rows
                if each in self._holders and each not in self._unheld
            ),
            arrays=arrays,
            holders=tuple(
                Holder(each, handle, self._described(all_rows[self._rows.row_numbers[id(each)]]))
                for each in above
                if each is not None
            ),
            role=row.role,
            shown=min(described.shown, size) if size else described.shown,
            words=TENSORFLOW,
        )

    def _described(self, row: CensusRow) -> Survivor:
        fact = row.fact
        return Survivor(
            address=fact.address,
            size=fact.buffer_nbytes,
            name="" if row.name < 0 else self._names[row.name],
            dtype=fact.dtype,
            shape=fact.shape,
            shown=fact.nbytes,
        )

    def _find_unheld(self, heap: Heap) -> None:
        """Find the tensors whose only holder in Python is an array that shows them."""
        self._unheld: set[int] = set()
        rows = self._rows.rows
        shown_rows = [row for row in self._holders if self._arrays.get(rows[row].fact.address)]
        if not shown_rows:
            return
        items = [self._holders[row] for row in shown_rows]
        own = (heap.objects, heap.tensors, heap.variables, heap.keras_variables, self._holders)
        paths = reference_paths(items, skip={*map(id, own)})
        for row, found in zip(shown_rows, paths, strict=True):
            if all(path.references[0].kind == "unknown" for path in found):
                self._unheld.add(row)


def _outermost(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """Return arrays without those that TensorFlow makes for a ``memoryview`` of a tensor."""
    base = sys.modules["numpy"].ndarray.base.__get__
    views = (each for each in map(base, arrays) if type(each) is memoryview)
    inner = {id(view.obj) for view in views}
    return tuple(array for array in arrays if id(array) not in inner)
