"""The lines that made arrays: JAX notes the stack of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

from tensorlens.frameworks.census_table import Births
from tensorlens.frameworks.code import is_foreign
from tensorlens.frameworks.jax.buffers import Fact
from tensorlens.records.tensors import SourceLine


class Lines:
    """Numbers the innermost lines of the program's on stacks (``Array.traceback``)."""

    def __init__(self) -> None:
        self.all: list[SourceLine] = []
        self._numbers: dict[SourceLine, int] = {}
        self._known: dict[Any, int] = {}

    def of(self, array: Any) -> int:
        """Return the number of the line that made an array, -1 where none is known."""
        stack = getattr(array, "traceback", None)
        if stack is None:
            return -1
        if stack not in self._known:
            self._known[stack] = self._number(stack)
        return self._known[stack]

    def _number(self, stack: Any) -> int:
        for frame in stack.frames:
            if not is_foreign(frame.file_name):
                line = SourceLine(frame.file_name, frame.line_num, frame.function_name)
                number = self._numbers.setdefault(line, len(self.all))
                if number == len(self.all):
                    self.all.append(line)
                return number
        return -1


class TracebackBirths(Births):
    """Which line made the buffer at an address, by the first of the arrays that show it."""

    def __init__(self, found: Iterable[tuple[Fact, Any]]) -> None:
        """``found`` has each fact with its array."""
        super().__init__(None)
        self._lines = Lines()
        self._of: dict[int, int] = {}
        for fact, each in found:
            if fact.address:
                self._of.setdefault(fact.address, self._lines.of(each))

    def numbers(self, storages: array[int]) -> array[int]:
        """Return the number of the line that made each, -1 where it is not known."""
        return array("i", (self._of.get(address, -1) for address in storages))

    def line(self, number: int) -> SourceLine:
        """Return a line by its number."""
        return self._lines.all[number]
