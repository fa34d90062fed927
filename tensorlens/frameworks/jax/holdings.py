"""One look at the heap: who keeps JAX's arrays alive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens import collector
from tensorlens.frameworks.heap.outside import outside
from tensorlens.frameworks.jax.buffers import Reader
from tensorlens.frameworks.jax.census.find import Heap, look
from tensorlens.frameworks.jax.census.named import NamedRows
from tensorlens.frameworks.jax.census.rows import Rows
from tensorlens.frameworks.survivors import Below, Hung, Survivor
from tensorlens.frameworks.words import JAX
from tensorlens.records.tensors import ROLES


class JaxHoldings:
    """What one look gave; only :attr:`survivors` refers to the program's objects.

    A buffer is kept by the arrays in Python that show it, or the variables and keys they are in,
    by NumPy's arrays that share it, and by what XLA keeps, of which Python knows nothing.
    """

    def __init__(self, addresses: Sequence[int]) -> None:
        """Look for what keeps the buffers at ``addresses`` alive."""
        with collector.paused():
            heap = look([])
            try:
                self.survivors: list[Survivor] = _survivors(heap, addresses)
                """One for each address, in order."""
            finally:
                # among all objects is this one
                heap.objects.clear()

    def root(self, item: Any) -> Hung:
        """Nothing hangs below an array.

        Raises:
            KeyError: always.
        """
        raise KeyError(id(item))

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Below:
        """Return that nothing hangs below arrays."""
        return Below(0, 0, ())


def _survivors(heap: Heap, addresses: Sequence[int]) -> list[Survivor]:
    rows = Rows(heap, Reader())
    names = NamedRows(heap, rows, ()).names
    at: dict[int, list[int]] = {}
    for number, row in enumerate(rows.all):
        at.setdefault(row.fact.address, []).append(number)
    known = {id(each): each for each in (*heap.arrays, *heap.keys, *heap.variables)}
    sizes = [(each, rows.all[at[each][0]].fact.buffer_nbytes) for each in addresses if each in at]
    arrays = outside(sizes, heap.objects).arrays
    found = []
    for address in addresses:
        mine = at.get(address, [])
        if not mine:
            found.append(Survivor(address, 0, words=JAX))
            continue
        owners = [rows.all[each].owner for each in mine]
        row = rows.all[min(mine, key=lambda each: (ROLES.index(rows.all[each].role), each))]
        found.append(
            Survivor(
                address=address,
                size=row.fact.buffer_nbytes,
                tensors=tuple(known[owner] for owner in owners if owner in known),
                arrays=tuple(arrays.get(address, ())),
                role=row.role,
                name="" if row.name < 0 else names[row.name],
                device=row.device,
                dtype=row.fact.dtype,
                shape=row.fact.shape,
                shown=min(row.fact.nbytes, row.fact.buffer_nbytes),
                words=JAX,
            )
        )
    return found
