"""Looks for names while recording: at the beginning, when backward begins, and at the end."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from tensorlens.frameworks.base import RecordOptions, Root
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.labels import AT_THE_END, Names, TimeSpan
from tensorlens.records.tensors import TensorTable

ModulePath = Callable[[int, str], str | None]
"""Gives the path of a module by its address and its type's name; None where it is not known."""

_SHARE = 20
"""After the second time, backward is looked at for at most one part in so many of the time."""


@dataclass(frozen=True, slots=True)
class NameSources:
    """How a framework's names are found."""

    census: Callable[[Sequence[Root]], TensorTable]
    """Gives the live tensors, named from roots on."""
    module_paths: Callable[[Sequence[Root]], ModulePath]
    """Gives what gives the paths of the modules that live now."""


class Naming:
    """The censuses of one recording; none where the options want no names.

    Args:
        options: of the recording.
        native: calls back when backward begins.
        sight: how names are found.
    """

    def __init__(self, options: RecordOptions, native: NativeRecorder, sight: NameSources) -> None:
        self._options = options
        self._native = native
        self._sight = sight
        self._between: list[tuple[Names, TimeSpan]] = []
        self._paths: list[ModulePath] = []
        self._began = self._spent = 0
        self._before = self._census()

    def begin(self) -> None:
        """The recording has begun."""
        self._began = time.monotonic_ns()
        if self._options.names:
            _running.add(self)
            self._native.name_at_backward(_name)

    def look(self) -> None:
        """Find the names of what is there now; not always, as it takes as long as a snapshot."""
        began = time.monotonic_ns()
        # the second pass is the first to find the state of optimizers
        if len(self._between) > 1 and _SHARE * self._spent > began - self._began:
            return
        roots = self._options.roots()
        names = Names(self._sight.census(roots))
        self._between.append((names, TimeSpan(began, time.monotonic_ns())))
        self._paths.append(self._sight.module_paths(roots))
        self._spent += time.monotonic_ns() - began

    def end(self) -> None:
        """The recording has ended."""
        _running.discard(self)

    def found(self, started: int) -> list[tuple[Names, TimeSpan]]:
        """Return each census, the last as of now, with when all that it saw was there.

        Args:
            started: when the recording began, in monotonic nanoseconds.
        """
        after = self._census()
        if self._before is None or after is None:
            return []
        return [
            (self._before, TimeSpan(started, started)),
            *self._between,
            (after, TimeSpan(AT_THE_END, AT_THE_END)),
        ]

    def paths(self) -> Callable[[int, str], str]:
        """Return what gives the path of a module that lives now, or did when backward began.

        Of one that is gone, and with it the model that knew its path, it is the type's name.
        """

        @functools.cache
        def now() -> ModulePath:
            return self._sight.module_paths(self._options.roots())

        def path(address: int, kind: str) -> str:
            sources = chain((now(),), reversed(self._paths))
            return next(filter(None, (source(address, kind) for source in sources)), kind)

        return path

    def _census(self) -> Names | None:
        return Names(self._sight.census(self._options.roots())) if self._options.names else None


_running: weakref.WeakSet[Naming] = weakref.WeakSet()


def _name() -> None:
    """Find names for all recordings that are on; called in the middle of the program."""
    for naming in [*_running]:
        with contextlib.suppress(Exception):
            naming.look()
