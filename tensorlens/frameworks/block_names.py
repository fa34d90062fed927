"""Names of a recording's blocks: from censuses by address, and of gradients by parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import compress, count, repeat
from operator import ge

from tensorlens.heap.frames import TEMPORARY
from tensorlens.records.families import TOGETHER
from tensorlens.records.logs.events import EventLog, Label
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES
from tensorlens.units import rounded_up

_ANONYMOUS_PREFIXES = ("made at ", "<cell>")
"""Prefixes of names of tensors without a named holder."""


def _is_anonymous(name: str) -> bool:
    return name.startswith(_ANONYMOUS_PREFIXES) or name.endswith(TEMPORARY)


class AddressNames:
    """Names by address on a device, from one census.

    Args:
        table: the tensors of the census.
        device: the device, in torch's spelling.
        rounding: unit of the allocator's sizes, in bytes.
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
        """Return the name of the storage of this size at an address."""
        row = self._rows.get(address)
        table = self._table
        if row is None or rounded_up(table.storage_nbytes[row], self._rounding) != size:
            return None
        note = table.note[row]
        together = TOGETHER.get(table.notes[note]) if note >= 0 else None
        return Label(
            name=together or table.names[table.name[row]],
            role=ROLES[table.role[row]],
            dtype=table.dtypes[table.dtype[row]],
            shape=table.shapes[table.shape[row]],
        )


def name_blocks(
    log: EventLog,
    owner: Sequence[int],
    found: Iterable[tuple[AddressNames, Iterable[int]]],
    device: int = 0,
) -> None:
    """Name a device's blocks: from censuses, and gradients by their parameter.

    Args:
        log: the log with the blocks.
        owner: for each row the row whose gradient it is, or -1; empty if unknown.
        found: each census with the rows of the blocks that lived then. A later name replaces an
            earlier one, unless it says less.
        device: number of the device.
    """
    for names, rows in found:
        for row in rows:
            if log.device[row] == device:
                label = names.at(log.address[row], log.size[row])
                if label is not None and not _is_known_better(log, row, label):
                    log.name(row, label)
    gradients: dict[int, Label] = {}
    for row in compress(count(), map(ge, owner, repeat(0))):
        number = log.label[owner[row]]
        if number >= 0 and log.label[row] < 0:
            if number not in gradients:
                parameter = log.labels[number]
                gradient = replace(parameter, name=f"{parameter.name}.grad", role="gradient")
                gradients[number] = gradient
            log.name(row, gradients[number])


def _is_known_better(log: EventLog, row: int, label: Label) -> bool:
    """Return whether an earlier name of a block, or the operator that made it, says more."""
    if label.role != "other":
        return False
    context = log.context[row]
    made = context >= 0 and log.contexts[context].op is not None
    return log.label[row] >= 0 or (made and _is_anonymous(label.name))
