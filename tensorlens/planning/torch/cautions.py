"""Cautions: lines that were not run as a real device would run them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from traceback import walk_stack
from types import FrameType

from tensorlens.planning.trace import Caution
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign


class Cautions:
    """Assumptions, once for each line of the program."""

    def __init__(self) -> None:
        self.found: list[Caution] = []
        self._seen: set[tuple[str, SourceLine | None]] = set()

    def __call__(self, text: str) -> None:
        """Note what was assumed for what the program does now."""
        line = _line_of_program(sys._getframe(1))
        if (text, line) not in self._seen:
            self._seen.add((text, line))
            self.found.append(Caution(text, line))


def _line_of_program(frame: FrameType) -> SourceLine | None:
    for each, lineno in walk_stack(frame):
        if not is_foreign(each.f_code.co_filename):
            return SourceLine(each.f_code.co_filename, lineno or 0, each.f_code.co_qualname)
    return None


_listening: list[Callable[[str], None]] = []


@contextlib.contextmanager
def caution_scope(cautions: Callable[[str], None]) -> Iterator[None]:
    """Let :func:`caution` reach these while it is entered."""
    _listening.append(cautions)
    try:
        yield
    finally:
        _listening.remove(cautions)


def caution(text: str) -> None:
    """Note one line on what was assumed."""
    if _listening:
        _listening[-1](text)
