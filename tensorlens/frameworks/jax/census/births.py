"""The lines that made arrays: JAX notes the stack of each."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from tensorlens.frameworks.census_table import Births
from tensorlens.frameworks.code import is_foreign
from tensorlens.frameworks.found_rows import FoundRow
from tensorlens.frameworks.jax.buffers import Fact
from tensorlens.records.tensors import SourceLine


class TracebackBirths(Births):
    """The innermost line of the program's on the stack of each array (``Array.traceback``)."""

    def __init__(self, rows: Sequence[FoundRow[Fact]], arrays: Sequence[Any]) -> None:
        super().__init__(None)
        self._lines: list[SourceLine] = []
        self._numbers: dict[SourceLine, int] = {}
        self._of: dict[int, int] = {}
        known: dict[Any, int] = {}
        for row in rows:
            stack = getattr(arrays[row.fact.array], "traceback", None)
            if stack is not None and row.fact.address:
                if stack not in known:
                    known[stack] = self._number(stack)
                self._of.setdefault(row.fact.address, known[stack])

    def numbers(self, storages: array[int]) -> array[int]:
        """Return the number of the line that made each, -1 where it is not known."""
        return array("i", (self._of.get(address, -1) for address in storages))

    def line(self, number: int) -> SourceLine:
        """Return a line by its number."""
        return self._lines[number]

    def _number(self, stack: Any) -> int:
        for frame in stack.frames:
            if not is_foreign(frame.file_name):
                line = SourceLine(frame.file_name, frame.line_num, frame.function_name)
                number = self._numbers.setdefault(line, len(self._lines))
                if number == len(self._lines):
                    self._lines.append(line)
                return number
        return -1
