"""Memory of tensors that their framework's allocator did not hand out: whose it is."""

from __future__ import annotations

import bisect
from pathlib import Path

from tensorlens.frameworks.census.table import number_of
from tensorlens.frameworks.host.process import mappings
from tensorlens.records.tensors import TensorTable


def note_foreign(table: TensorTable, rows: list[int], framework: str) -> None:
    """Say of each storage that the framework's allocator did not give whose memory it is."""
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
        """Return a line on whose memory this is."""
        place = bisect.bisect_right(self._ends, address)
        path = self._files[place] if place < len(self._files) else ""
        if path.startswith("dev/shm/") or "(deleted)" in path:
            return f"shared memory, not {framework}'s allocator"
        if path:
            return f"mapped from {Path(path).name}, not {framework}'s allocator"
        return f"memory of NumPy or another library, not {framework}'s allocator"
