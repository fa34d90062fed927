"""Names of blocks: what a census finds at their addresses, and whose gradients they are."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress, count, repeat
from operator import ge, lt

from tensorlens.frameworks.host.allocator_log import Columns
from tensorlens.heap.frames import TEMPORARY
from tensorlens.records.events import ALLOC, EventLog, Label
from tensorlens.records.families import TOGETHER
from tensorlens.records.tensors import TensorTable
from tensorlens.roles import ROLES
from tensorlens.units import rounded_up

AT_THE_END = 2**63 - 1
"""The time of what happens after the last event."""


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A span of time, in monotonic nanoseconds."""

    begin: int
    end: int


class Lifetimes:
    """When the block of each row was handed out, and until when it is known to have been there.

    Times are monotonic nanoseconds; those of blocks from before the recording are before it. From
    the row ``first`` on they rise.
    """

    def __init__(self, made: array[int], until: array[int], first: int) -> None:
        self._made = made
        self._until = until
        self._first = first

    def there(self, span: TimeSpan) -> list[int]:
        """Return the rows of the blocks that were there all of a span."""
        last = bisect_left(self._made, span.begin, self._first)
        lasting = compress(range(last), map(ge, self._until, repeat(span.end)))
        return [row for row in lasting if self._made[row] < span.begin]


def event_lifetimes(rows: Columns) -> Lifetimes:
    """Return the lifetimes of the blocks of all events."""
    return Lifetimes(rows.time, _ends(rows), bisect_left(rows.kind, ALLOC))


def dropped_lifetimes(peak: Columns, rows: Columns) -> Lifetimes:
    """Return the lifetimes of what was resident at the highest instant among dropped events.

    Those that outlived these events are among the ``rows``, where their end is known. Of the
    others it is known that they were there at that instant, which its newest block made.
    """
    kept = dict(zip(zip(rows.address, rows.time, strict=True), _ends(rows), strict=True))
    instant = max(peak.time, default=0)
    blocks = zip(peak.address, peak.time, strict=True)
    until = array("q", (max(kept.get(key, 0), instant) for key in blocks))
    return Lifetimes(peak.time, until, len(until))


def _ends(rows: Columns) -> array[int]:
    """Return when each row's block was given back; of a row that is no block, when it began."""
    until = array("q", map(rows.time.__getitem__, rows.pair))
    for row in compress(count(), map(lt, rows.pair, repeat(0))):
        until[row] = AT_THE_END if rows.kind[row] <= ALLOC else rows.time[row]
    return until


_NOBODYS = ("made at ", "<cell>")
"""How a census's names begin of what nothing holds that has a name."""


def _is_nobodys(name: str) -> bool:
    return name.startswith(_NOBODYS) or name.endswith(TEMPORARY)


class AddressNames:
    """Names by address on a device, from one census.

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


def label(
    log: EventLog,
    owner: Sequence[int],
    found: Iterable[tuple[AddressNames, Iterable[int]]],
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
    for names, rows in found:
        for row in rows:
            if log.device[row] == device:
                name = names.at(log.address[row], log.size[row])
                if name is not None and not _is_known_better(log, row, name):
                    log.name(row, name)
    gradients: dict[int, Label] = {}
    for row in compress(count(), map(ge, owner, repeat(0))):
        number = log.label[owner[row]]
        if number >= 0 and log.label[row] < 0:
            if number not in gradients:
                parameter = log.labels[number]
                gradient = replace(parameter, name=f"{parameter.name}.grad", role="gradient")
                gradients[number] = gradient
            log.name(row, gradients[number])


def _is_known_better(log: EventLog, row: int, name: Label) -> bool:
    """Tell whether an earlier name of a block, or the operator that made it, says more."""
    if name.role != "other":
        return False
    context = log.context[row]
    made = context >= 0 and log.contexts[context].op is not None
    return log.label[row] >= 0 or (made and _is_nobodys(name.name))


def unfreed(log: EventLog) -> list[int]:
    """Return the rows of what was still there at the end."""
    rows = zip(log.kind, log.pair, strict=True)
    return [row for row, (kind, pair) in enumerate(rows) if kind <= ALLOC and pair < 0]
