"""Columns that all censuses fill alike: births, names by line, aliases, foreign memory."""

from __future__ import annotations

import bisect
from array import array
from pathlib import Path
from typing import TypeVar

from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.process_memory import mappings
from tensorlens.heap import why_no_names
from tensorlens.records.ledger import UnnamedBlock
from tensorlens.records.tensors import SourceLine, TensorTable

_T = TypeVar("_T")


def number_of(items: list[_T], item: _T) -> int:
    """Return the index of an item in a short list, adding it if it is new."""
    try:
        return items.index(item)
    except ValueError:
        items.append(item)
        return len(items) - 1


def unnamed_block(
    allocator: NativeAllocator, address: int, size: int, birth: int, what: str | None = None
) -> UnnamedBlock:
    """Return a block of no tensor, with the line that made it if known."""
    born = SourceLine(*allocator.birth_line(birth)) if birth >= 0 else None
    return UnnamedBlock(address, size, born, what=what)


def add_births(table: TensorTable, allocator: NativeAllocator | None) -> None:
    """Fill in the line that allocated each storage, if known."""
    if allocator is None:
        table.born, table.model_line = (array("i", [-1]) * len(table.storage) for _ in range(2))
        return
    born, models = allocator.births(table.storage)
    lines: dict[int, int] = {-1: -1}
    for number in (set(born) | set(models)) - {-1}:
        lines[number] = len(table.lines)
        table.lines.append(SourceLine(*allocator.birth_line(number)))
    table.born = array("i", map(lines.__getitem__, born))
    table.model_line = array("i", map(lines.__getitem__, models))


def name_the_rest(table: TensorTable) -> None:
    """Name the tensors without a name by the line that made them, if known."""
    if not table.name or min(table.name) >= 0:
        return
    native = -1
    made: dict[int, int] = {}
    for row, node in enumerate(table.name):
        if node >= 0:
            continue
        line = table.born[row] if table.model_line[row] < 0 else table.model_line[row]
        if line >= 0 and line not in made:
            made[line] = table.names.text(f"made at {table.lines[line]}")
        elif line < 0 and native < 0:
            unread = "held by a variable that cannot be read here"
            native = table.names.text(unread if why_no_names() else "held by NumPy or native code")
        table.name[row] = made[line] if line >= 0 else native


def choose_counted(table: TensorTable, first: array[int]) -> None:
    """Choose the row of each shared storage that is counted, and point the others to it.

    ``first`` has for each row a number that the rows of one storage share.
    """
    groups: dict[int, list[int]] = {}
    for row, storage in enumerate(first):
        groups.setdefault(storage, []).append(row)
    for rows in groups.values():
        if len(rows) > 1:
            # first by role, then a tensor that covers all of the storage
            counted = min(
                rows,
                key=lambda row: (
                    table.role[row],
                    table.nbytes[row] < table.storage_nbytes[row],
                    row,
                ),
            )
            for row in rows:
                table.alias[row] = -1 if row == counted else counted


def note_foreign(table: TensorTable, rows: list[int], framework: str) -> None:
    """Note at rows with storages of other allocators whose memory that is."""
    maps: _Maps | None = None
    for row in rows:
        if table.storage[row] and table.storage_nbytes[row] and table.note[row] < 0:
            maps = maps or _Maps()
            table.note[row] = number_of(table.notes, maps.origin(table.storage[row], framework))


class _Maps:
    """The files that are mapped into this process, by address."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._files: list[str] = []
        for line in mappings():
            span, _, rest = line.partition(" ")
            self._ends.append(int(span.partition("-")[2], 16))
            self._files.append(rest.partition("/")[2])

    def origin(self, address: int, framework: str) -> str:
        """Return the note for memory at an address."""
        place = bisect.bisect_right(self._ends, address)
        path = self._files[place] if place < len(self._files) else ""
        if path.startswith("dev/shm/") or "(deleted)" in path:
            return f"shared memory, not {framework}'s allocator"
        if path:
            return f"mapped from {Path(path).name}, not {framework}'s allocator"
        return f"memory of NumPy or another library, not {framework}'s allocator"
