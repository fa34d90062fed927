"""A stretch of the program between two calls of ours, measured beside its profiled lines.

A read of a counter starts a new peak for everybody. A stretch stands among the threads that are
inside profiled code as one more of them, so that neither side's reads take a peak from the other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from tensorlens.frameworks.base import Counter
from tensorlens.lines.tracing.accounting import Activation
from tensorlens.lines.tracing.engine import Engine, engine
from tensorlens.lines.tracing.threads import ThreadState


class MeasuredRegion:
    """Reads every counter between :meth:`begin` and :meth:`end`.

    Where an exception ends the stretch, :meth:`end` can be called later, from any thread.
    """

    def __init__(self, shared: Engine = engine) -> None:
        self._engine = shared
        self._activation: Activation | None = None
        self.thread: int | None = None
        """The thread that it began in; None where it is not on."""

    def begin(self) -> Sequence[int]:
        """Take up frameworks imported since, and begin; return the first read."""
        self.end()
        self._engine.attach()
        # no thread has a negative identity
        state = ThreadState(-id(self), self._engine.threads)
        self._activation = Activation(_NOBODYS, (), state)
        self._activation.enter()
        self.thread = threading.get_ident()
        return self.read()

    @property
    def counters(self) -> Sequence[Counter]:
        """Counters of the slots of a read."""
        return self._engine.meters.counters

    def notes(self) -> list[str]:
        """Return what the frameworks have to say about their figures, a line each."""
        return self._engine.meters.notes()

    def read(self) -> Sequence[int]:
        """Return ``allocated, peak since the last read, reserved`` of each slot, in bytes."""
        activation = self._activation
        return () if activation is None else activation.thread.read_beside_others(activation)

    def end(self) -> None:
        """End the stretch, if it is on."""
        activation, self._activation = self._activation, None
        self.thread = None
        if activation is not None:
            activation.thread.pop(activation)


_NOBODYS = compile("", "<tensorlens>", "exec")
"""No profiled line is of this code."""
