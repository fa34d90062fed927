"""A stretch of the program between two calls of ours, measured as a profiled line is.

A read of a counter starts a new peak for everybody. A stretch takes its place among the lines that
run in its thread, so that lines inside it, and the line around it, lose no peak to its reads nor
it to theirs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.base import Counter
from tensorlens.lines.accounting import WIDTH, Activation, raise_peaks
from tensorlens.lines.engine import Engine, engine


class Span:
    """Reads every counter between :meth:`begin` and :meth:`end`, which are called in one thread.

    An exception may end the stretch without :meth:`end`: what runs around it goes on as ever, and
    :meth:`end` can be called later, from anywhere.
    """

    def __init__(self, shared: Engine = engine) -> None:
        self._engine = shared
        self._activation: Activation | None = None
        self._is_first = True

    def begin(self) -> Sequence[int]:
        """Take up frameworks imported since, and begin; return the first read."""
        self.end()
        thread = self._engine.ready()
        self._activation = Activation(_NOBODYS, (), thread)
        self._activation.enter()
        self._is_first = True
        return self.read()

    @property
    def thread(self) -> int | None:
        """The thread that it began in; None where it is not on."""
        return None if self._activation is None else self._activation.thread.ident

    @property
    def counters(self) -> Sequence[Counter]:
        """What counts each slot of a read."""
        return self._engine.meters.counters

    def notes(self) -> list[str]:
        """Return what the frameworks have to say about their figures, a line each."""
        return self._engine.meters.notes()

    def read(self) -> Sequence[int]:
        """Return ``allocated, peak since the last read, reserved`` of each slot, in bytes."""
        activation = self._activation
        if activation is None:
            return ()
        figures = activation.thread.read_beside_others(activation)
        if self._is_first:
            self._is_first = False
            activation.thread.tell_caller(activation, figures)
        else:
            raise_peaks(activation.high, figures[1::WIDTH])
        return figures

    def end(self) -> None:
        """End the stretch, if it is on."""
        activation, self._activation = self._activation, None
        if activation is not None:
            activation.thread.pop(activation)


_NOBODYS = compile("", "<tensorlens>", "exec")
"""No profiled line is of this code."""
