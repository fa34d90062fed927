"""One look at the heap: who keeps blocks of TensorFlow's memory alive."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from tensorlens import collector
from tensorlens.frameworks.heap.outside import outside, shown
from tensorlens.frameworks.heap.paths import paths
from tensorlens.frameworks.survivors import Below, Holder, Hung, SavedBy, Survivor
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.census import kinds
from tensorlens.frameworks.tensorflow.census.find import look
from tensorlens.frameworks.tensorflow.census.named import NamedRows
from tensorlens.frameworks.tensorflow.census.reading import reader
from tensorlens.frameworks.tensorflow.census.rows import Heap, Row, Rows
from tensorlens.frameworks.tensorflow.census.tapes import Tapes, readable
from tensorlens.records.leaks import Reference
from tensorlens.records.tensors import ROLES

_NOTHING = Below(0, 0, ())


class TensorflowHoldings:
    """What one look gave; only :attr:`survivors` refers to the program's objects.

    A tensor's memory is kept by the tensors and variables in Python that show it, by tapes that
    recorded it, by arrays that share it, and by graphs and kernels that Python knows nothing of.
    """

    def __init__(self, addresses: Sequence[int]) -> None:
        """Look for what keeps the blocks at ``addresses`` alive."""
        with collector.paused():
            look = _Look(addresses)
            self.survivors: list[Survivor] = [look.survivor(address) for address in addresses]
            """One for each address, in order."""
            self._hung = {id(tape): look.hung(tape) for tape in look.tapes.values()}

    def root(self, item: Any) -> Hung:
        """Return what is known of a tape that holds survivors.

        Raises:
            KeyError: it is none of them.
        """
        return self._hung[id(item)]

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Below:
        """Return nothing: a tensor of TensorFlow's keeps no other."""
        return _NOTHING


class _Look:
    """The heap as it is now: to be dropped at once."""

    def __init__(self, addresses: Sequence[int]) -> None:
        heap = look([])
        tensors = reader()
        self._rows = Rows(heap, tensors)
        wrappers = readable(heap.tapes, heap.tensors, self._rows.all, tensors)
        self._uses = Tapes(wrappers, tensors)
        self._named = NamedRows(heap, self._rows, self._uses, ())
        self._sizes = _sizes(addresses)
        self._arrays = outside([*self._sizes.items()], heap.objects).arrays
        self._at: dict[int, list[int]] = {}
        for number, row in enumerate(self._rows.all):
            if row.fact.address in self._sizes:
                self._at.setdefault(row.fact.address, []).append(number)
        self._holders = _holders(heap, self._rows, {row for at in self._at.values() for row in at})
        self.tapes = self._tapes(heap)
        """Number of a row that a tape alone holds to the ``GradientTape``."""

    def survivor(self, address: int) -> Survivor:
        """Return what is known of the block at an address."""
        rows, size = self._at.get(address, []), self._sizes[address]
        arrays = tuple(self._arrays.get(address, ()))
        if not rows:
            return Survivor(address, size, arrays=arrays, shown=shown(arrays) if arrays else 0)
        all_rows = self._rows.all
        best = min(rows, key=lambda row: (ROLES.index(all_rows[row].role), row))
        row = all_rows[best]
        tape = next((self.tapes[each] for each in rows if each in self.tapes), None)
        held = [item for each in rows if each not in self.tapes for item in self._items(each)]
        return Survivor(
            address=address,
            size=size or row.fact.buffer_nbytes,
            tensors=tuple(held),
            arrays=arrays,
            holders=() if tape is None else (_by_tape(tape, row),),
            saved=tuple(self._saved(each) for each in rows if self._use(each) is not None),
            role=row.role,
            name="" if row.name < 0 else self._named.names[row.name],
            device=row.device,
            dtype=row.fact.dtype,
            shape=row.fact.shape,
            shown=min(row.fact.nbytes, size) if size else row.fact.nbytes,
        )

    def hung(self, tape: Any) -> Hung:
        """Return what is known of a tape."""
        return Hung(0, "", "activation", "", "", (), 0, 0, kinds.class_name(tape))

    def _items(self, row: int) -> list[Any]:
        holder = self._holders.get(row)
        return [] if holder is None else [holder]

    def _use(self, row: int) -> Any:
        return self._uses.uses.get(self._rows.all[row].number)

    def _saved(self, row: int) -> SavedBy:
        use = self._use(row)
        argument = "output" if use.argument is None else f"input[{use.argument}]"
        return SavedBy(use.operation.type, argument, None, False)

    def _tapes(self, heap: Heap) -> dict[int, Any]:
        """Return who holds what only a tape holds: Python has no other way to it."""
        asked = [row for row in self._holders if self._use(row) is not None]
        if not asked or not heap.tapes:
            return {}
        ways = paths([self._holders[row] for row in asked])
        tape = heap.tapes[-1]
        return {row: tape for row, found in zip(asked, ways, strict=True) if not found}


def _by_tape(tape: Any, row: Row) -> Holder:
    shape = ", ".join(map(str, row.fact.shape))
    kept = Reference("saved", f"what the tape recorded: {row.fact.dtype} ({shape})", "Tensor")
    return Holder(tape, (kept,))


def _holders(heap: Heap, rows: Rows, wanted: set[int]) -> dict[int, Any]:
    """Return the object that a person knows a row by: a variable rather than its handle."""
    found: dict[int, Any] = {}
    for item in (*heap.keras_variables, *heap.distributed, *heap.variables, *heap.tensors):
        row = rows.of.get(id(item), -1)
        if row in wanted:
            found.setdefault(row, item)
    return found


def _sizes(addresses: Sequence[int]) -> dict[int, int]:
    """Return the bytes of each block, 0 where nobody knows them."""
    sizes = dict.fromkeys(addresses, 0)
    counter = cpu.cpu_counter()
    if isinstance(counter, cpu.CpuCounter):
        blocks = counter.allocator.balance(array("Q", sizes)).sizes
        sizes = {address: max(size, 0) for address, size in zip(sizes, blocks, strict=True)}
    return sizes
