"""Names of blocks: what a census finds at their addresses, and whose gradients they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tensorlens.frameworks.heap.frames import TEMPORARY
from tensorlens.records.events import ALLOC, EventLog, Label
from tensorlens.records.families import TOGETHER
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES

_OTHER = ROLES.index("other")
_NOBODYS = ("made at ", "<cell>")
"""How a census's names begin of what nothing holds that has a name."""


def _is_nobodys(name: str) -> bool:
    return name.startswith(_NOBODYS) or name.endswith(TEMPORARY)


class Names:
    """What is at which address of a device, by one census.

    Args:
        table: what the census found.
        device: torch's spelling.
        rounding: the allocator hands out multiples of so many bytes.
    """

    def __init__(self, table: TensorTable, device: str = "cpu", rounding: int = 1) -> None:
        self._table = table
        self._rounding = rounding
        number = table.devices.index(device) if device in table.devices else -1
        self._rows = {
            table.storage[row]: row
            for row in table.counted()
            if table.device[row] == number and table.storage_nbytes[row]
        }

    def at(self, address: int, size: int) -> Label | None:
        """Return the name of the storage of this size that begins at this address."""
        row = self._rows.get(address)
        table = self._table
        if row is None or -(-table.storage_nbytes[row] // self._rounding) * self._rounding != size:
            return None
        note = table.note[row]
        together = TOGETHER.get(table.notes[note]) if note >= 0 else None
        return Label(
            name=together or table.names[table.name[row]],
            role=ROLES[table.role[row]],
            dtype=table.dtypes[table.dtype[row]],
            shape=table.shapes[table.shape[row]],
        )


def label(
    log: EventLog,
    owner: Sequence[int],
    found: Iterable[tuple[Names, Iterable[int]]],
    device: int = 0,
) -> None:
    """Name a device's blocks: what censuses saw, and gradients by their parameter.

    Args:
        log: whose blocks.
        owner: for each row that of what it is the gradient of, or -1; none where unknown.
        found: each census with the rows of the blocks that were there then. A later name comes
            before an earlier one, unless it says less.
        device: number of the device.
    """
    numbers: dict[Label, int] = {}

    def give(row: int, name: Label) -> None:
        number = numbers.setdefault(name, len(log.labels))
        if number == len(log.labels):
            log.labels.append(name)
        log.label[row] = number

    for names, rows in found:
        for row in rows:
            if log.device[row] == device:
                name = names.at(log.address[row], log.size[row])
                if name is not None and not _is_known_better(log, row, name):
                    give(row, name)
    for row, of in enumerate(owner):
        if of >= 0 and log.label[of] >= 0 and log.label[row] < 0:
            parameter = log.labels[log.label[of]]
            give(row, replace(parameter, name=f"{parameter.name}.grad", role="gradient"))


def _is_known_better(log: EventLog, row: int, name: Label) -> bool:
    """Tell whether an earlier name of a block, or the operator that made it, says more."""
    if name.role != ROLES[_OTHER]:
        return False
    context = log.context[row]
    made = context >= 0 and log.contexts[context].op is not None
    return log.label[row] >= 0 or (made and _is_nobodys(name.name))


def unfreed(log: EventLog) -> list[int]:
    """Return the rows of what was still there at the end."""
    rows = zip(log.kind, log.pair, strict=True)
    return [row for row, (kind, pair) in enumerate(rows) if kind <= ALLOC and pair < 0]
