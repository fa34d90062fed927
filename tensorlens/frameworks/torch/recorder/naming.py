"""When a recording looks for names: at its beginning, when backward begins, and at its end."""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable
from itertools import chain

from tensorlens.frameworks.base import RecordOptions
from tensorlens.frameworks.torch.census.take import take
from tensorlens.frameworks.torch.native.recorder import NativeRecorder
from tensorlens.frameworks.torch.recorder.labels import (
    ModulePath,
    Names,
    module_paths,
)
from tensorlens.frameworks.torch.recorder.lifetimes import AT_THE_END, Span

_SHARE = 20
"""After the second time, backward is looked at for at most one part in so many of the time."""


class Naming:
    """The censuses of one recording; none where the options want no names.

    Args:
        options: of the recording.
        native: calls back when backward begins.
    """

    def __init__(self, options: RecordOptions, native: NativeRecorder) -> None:
        self._options = options
        self._native = native
        self._between: list[tuple[Names, Span]] = []
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
        names = Names(take(roots).tensors)
        self._between.append((names, Span(began, time.monotonic_ns())))
        self._paths.append(module_paths(roots))
        self._spent += time.monotonic_ns() - began

    def end(self) -> None:
        """The recording has ended."""
        _running.discard(self)

    def found(self, started: int) -> list[tuple[Names, Span]]:
        """Return each census, the last as of now, with when all that it saw was there.

        Args:
            started: when the recording began, in monotonic nanoseconds.
        """
        after = self._census()
        if self._before is None or after is None:
            return []
        return [
            (self._before, Span(started, started)),
            *self._between,
            (after, Span(AT_THE_END, AT_THE_END)),
        ]

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
