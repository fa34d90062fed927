"""Looks for names while recording: at the beginning, when backward begins, and at the end."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorlens.frameworks.base import CensusRoot, RecordOptions
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.labels import AT_THE_END, AddressNames, TimeSpan
from tensorlens.records.tensors import TensorTable

ModulePath = Callable[[int, str], str | None]
"""Gives the path of a module by its address and its type's name; None where it is not known."""

Moment = Literal["begin", "backward", "end"]

_SHARE = 20
"""After the second time, backward is looked at for at most one part in so many of the time."""


def unknown_path(address: int, kind: str) -> str | None:
    """Know the path of no module."""
    return None


@dataclass(frozen=True, slots=True)
class MomentCensus:
    """What is there at a moment."""

    tensors: TensorTable
    path: ModulePath = unknown_path
    """Knows the modules that live then."""


@dataclass(frozen=True, slots=True)
class NameSources:
    """How a framework's names are found."""

    look: Callable[[Sequence[CensusRoot], Moment], MomentCensus]
    """Gives the live tensors, named from roots on, and the paths of modules."""
    paths: Callable[[Sequence[CensusRoot]], ModulePath]
    """Gives the paths of the modules that live now."""


@dataclass(frozen=True, slots=True)
class FoundNames:
    """What was seen at all moments of a recording."""

    tensors: Sequence[tuple[TensorTable, TimeSpan]]
    """Each with when all that is in it was there."""
    paths: Sequence[ModulePath]
    """Those that were taken later come first."""

    def names(self) -> list[tuple[AddressNames, TimeSpan]]:
        """Return names by address."""
        return [(AddressNames(table), span) for table, span in self.tensors]

    def path(self, address: int, kind: str) -> str:
        """Return the path of a module; of one that nothing named, its type's name."""
        return next(filter(None, (path(address, kind) for path in self.paths)), kind)


class MomentCensuses:
    """The censuses of one recording; none where the options want no names.

    Args:
        options: of the recording.
        native: calls back when backward begins.
        sources: how names are found.
    """

    def __init__(
        self, options: RecordOptions, native: NativeRecorder, sources: NameSources
    ) -> None:
        self._options = options
        self._native = native
        self._sources = sources
        self._between: list[tuple[TensorTable, TimeSpan]] = []
        self._paths: list[ModulePath] = []
        self._began = self._spent = 0
        self._before = self._look("begin").tensors if options.names else None

    def begin(self) -> None:
        """The recording has begun."""
        self._began = time.monotonic_ns()
        if self._options.names:
            _running.add(self)
            self._native.name_at_backward(_name)

    def look(self) -> None:
        """Find the names of what is there now, unless that was done too often."""
        began = time.monotonic_ns()
        # the second pass is the first to find the state of optimizers
        if len(self._between) > 1 and _SHARE * self._spent > began - self._began:
            return
        sight = self._look("backward")
        self._between.append((sight.tensors, TimeSpan(began, time.monotonic_ns())))
        self._paths.append(sight.path)
        self._spent += time.monotonic_ns() - began

    def end(self) -> None:
        """The recording has ended."""
        _running.discard(self)

    def found(self, started: int) -> FoundNames:
        """Return what was seen, and what is there now.

        Args:
            started: when the recording began, in monotonic nanoseconds.
        """
        if self._before is None:
            return FoundNames((), (self._sources.paths(self._options.roots()),))
        after = self._look("end")
        tables = (
            (self._before, TimeSpan(started, started)),
            *self._between,
            (after.tensors, TimeSpan(AT_THE_END, AT_THE_END)),
        )
        return FoundNames(tables, (after.path, *reversed(self._paths)))

    def _look(self, moment: Moment) -> MomentCensus:
        return self._sources.look(self._options.roots(), moment)


_running: weakref.WeakSet[MomentCensuses] = weakref.WeakSet()


def _name() -> None:
    """Find names for all recordings that are on; called in the middle of the program."""
    for censuses in [*_running]:
        with contextlib.suppress(Exception):
            censuses.look()
