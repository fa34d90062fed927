"""Names of blocks: what a census finds at their addresses, and whose gradients they are."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.heap import anchors, hold, living, select
from tensorlens.frameworks.torch.census.modules import class_name
from tensorlens.frameworks.torch.census.owners import Owners, without_function
from tensorlens.records.events import ALLOC, START, EventLog, Label
from tensorlens.records.tensors import ROLES, TensorTable

_OTHER = ROLES.index("other")


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
        return Label(
            name=table.names[table.name[row]],
            role=ROLES[table.role[row]],
            dtype=table.dtypes[table.dtype[row]],
            shape=table.shapes[table.shape[row]],
        )


def label(
    log: EventLog,
    owner: Sequence[int],
    before: Names | None,
    after: Names | None,
    device: int = 0,
    early: Iterable[int] | None = None,
    late: Iterable[int] | None = None,
) -> None:
    """Name a device's blocks: those alive at either end by a census, gradients by their parameter.

    A name at the end comes before one at the beginning, unless it says less.

    Args:
        log: whose blocks.
        owner: for each row that of what it is the gradient of, or -1; none where unknown.
        before: the census at the beginning.
        after: the census at the end.
        device: number of the device.
        early: the rows that were there at the beginning, by default all of :data:`START`.
        late: the rows that were there at the end, by default those that were not freed.
    """
    numbers: dict[Label, int] = {}

    def give(row: int, name: Label) -> None:
        number = numbers.setdefault(name, len(log.labels))
        if number == len(log.labels):
            log.labels.append(name)
        log.label[row] = number

    if before is not None:
        for row in range(starts(log)) if early is None else early:
            found = before.at(log.address[row], log.size[row])
            if found is not None:
                give(row, found)
    if after is not None:
        for row in unfreed(log) if late is None else late:
            found = after.at(log.address[row], log.size[row]) if log.device[row] == device else None
            known = log.label[row] >= 0
            if found is not None and not (known and found.role == ROLES[_OTHER]):
                give(row, found)
    for row, of in enumerate(owner):
        if of >= 0 and log.label[of] >= 0 and log.label[row] < 0:
            parameter = log.labels[log.label[of]]
            give(row, replace(parameter, name=f"{parameter.name}.grad", role="gradient"))


def starts(log: EventLog) -> int:
    """Return how many rows say what was there before the first event."""
    return next((row for row, kind in enumerate(log.kind) if kind != START), len(log))


def unfreed(log: EventLog) -> list[int]:
    """Return the rows of what was still there at the end."""
    rows = zip(log.kind, log.pair, strict=True)
    return [row for row, (kind, pair) in enumerate(rows) if kind <= ALLOC and pair < 0]


def module_paths(roots: Sequence[Root] = ()) -> Callable[[int, str], str]:
    """Return what gives the path of a module that lives now, by its address and type's name.

    Of one that is gone, and with it the model that knew its path, it is the type's name.
    """
    objects = living()
    (modules,) = select(objects, (torch.nn.Module,))[:1]
    owners = Owners(roots)
    owners.add_found(modules, ())
    names = owners.naming.names
    nameless = array("Q", (id(module) for module, _ in owners.nameless))
    held = hold(objects, nameless, anchors(), names)
    for (_, node), found in zip(owners.nameless, held, strict=True):
        if found >= 0:
            owners.settle(node, found)
    types = {id(module): class_name(module) for module in modules}
    paths = owners.modules.paths

    def path(address: int, kind: str) -> str:
        node = paths.get(address)
        if node is None or types.get(address) != kind:
            return kind
        return without_function(names[node]) or kind

    return path
