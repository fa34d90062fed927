"""When a recording looks for names: at its beginning, when backward begins, and at its end."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from tensorlens.frameworks.base import RecordOptions
from tensorlens.frameworks.torch.census.take import take
from tensorlens.frameworks.torch.native.recorder import NativeRecorder
from tensorlens.frameworks.torch.recorder.labels import (
    ModulePath,
    Names,
    module_paths,
    there,
)
from tensorlens.records.events import EventLog

_SHARE = 20
"""After the first time, backward is looked at for at most one part in so many of the time."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What was there when backward began, between two marks of the log."""

    begin: int
    end: int
    names: Names


class Naming:
    """The censuses of one recording; none where the options want no names.

    Args:
        options: of the recording.
        native: calls back when backward begins.
        mark: marks a moment in the log, and returns the number of the mark.
    """

    def __init__(
        self, options: RecordOptions, native: NativeRecorder, mark: Callable[[], int]
    ) -> None:
        self._options = options
        self._native = native
        self._mark = mark
        self._between: list[_Found] = []
        self._paths: list[ModulePath] = []
        self._began = self._spent = 0
        self.before = self._census()
        """What was there when the recording began."""

    def begin(self) -> None:
        """The recording has begun."""
        self._began = time.monotonic_ns()
        if self._options.names:
            _running.add(self)
            self._native.name_at_backward(_name)

    def look(self) -> None:
        """Find the names of what is there now; not always, as it takes as long as a snapshot."""
        began = time.monotonic_ns()
        if self._between and _SHARE * self._spent > began - self._began:
            return
        first = self._mark()
        roots = self._options.roots()
        names = Names(take(roots).tensors)
        self._between.append(_Found(first, self._mark(), names))
        self._paths.append(module_paths(roots))
        self._spent += time.monotonic_ns() - began

    def end(self) -> None:
        """The recording has ended."""
        _running.discard(self)

    def after(self) -> Names | None:
        """Return what is there now."""
        return self._census()

    def between(
        self, log: EventLog, row_of: Callable[[int], int | None]
    ) -> Iterator[tuple[Names, list[int]]]:
        """Give what was found in the middle, with the rows of the log that were there then."""
        for each in self._between:
            begin, end = row_of(each.begin), row_of(each.end)
            if begin is not None and end is not None:
                yield each.names, there(log, begin, end)

    def paths(self) -> Callable[[int, str], str]:
        """Return what gives the path of a module that lives now, or did when backward began.

        Of one that is gone, and with it the model that knew its path, it is the type's name.
        """

        @functools.cache
        def now() -> ModulePath:
            return module_paths(self._options.roots())

        def path(address: int, kind: str) -> str:
            sources = chain((now(),), reversed(self._paths))
            return next(filter(None, (source(address, kind) for source in sources)), kind)

        return path

    def _census(self) -> Names | None:
        return Names(take(self._options.roots()).tensors) if self._options.names else None


_running: weakref.WeakSet[Naming] = weakref.WeakSet()


def _name() -> None:
    """Find names for all recordings that are on; called in the middle of the program."""
    for naming in [*_running]:
        with contextlib.suppress(Exception):
            naming.look()
