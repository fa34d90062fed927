"""A region of the program between two calls of ours, measured beside its profiled lines.

A read of a counter starts a new peak for everybody. A region stands among the threads that are
inside profiled code as one more of them, so that neither side's reads take a peak from the other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.registry import adapters
from tensorlens.interpreter import reentrant_lock
from tensorlens.lines.tracing.accounts import WIDTH
from tensorlens.lines.tracing.activation import Activation
from tensorlens.lines.tracing.engine import Engine, ThreadState, engine


@dataclass(frozen=True, slots=True)
class DeviceLevel:
    """One device's memory, in bytes; -1 is unknown."""

    device: str
    """torch's spelling: ``cpu``, ``cuda:0``."""
    allocated: int
    """Handed out by the framework's allocator."""
    peak: int
    """The most of it at any instant since the last reading."""
    reserved: int
    """Held by the allocator; on the host the resident set of the process."""


class MeasuredRegion:
    """Reads every counter between :meth:`begin` and :meth:`end`.

    Where an exception ends the region, :meth:`end` can be called later, from any thread.
    """

    def __init__(self, shared: Engine = engine) -> None:
        self._engine = shared
        self._activation: Activation | None = None
        self.thread: int | None = None
        """The thread that it began in; None where it is not on."""

    def begin(self) -> list[DeviceLevel]:
        """Take up frameworks imported since, and begin; return the first read."""
        self.end()
        self._engine.attach()
        # no thread has a negative identity
        state = ThreadState(-id(self), self._engine)
        self._activation = Activation(_EMPTY_CODE, (), state)
        self._activation.enter()
        self.thread = threading.get_ident()
        return self.read()

    @property
    def counters(self) -> Sequence[Counter]:
        """Counters of the slots of a read."""
        return self._engine.counters.counters

    def notes(self) -> list[str]:
        """Return what the frameworks have to say about their figures, a line each."""
        return self._engine.counters.notes()

    def figures(self) -> Sequence[int]:
        """Read every counter; give what :meth:`levels` takes, nothing where the region is not on.

        Called cold between two phases of a step: keep it to as few calls as possible.
        """
        activation = self._activation
        if activation is None:
            return ()
        thread = activation.thread
        if thread.generation != thread.counters.generation:
            thread.renew()
        if len(thread.busy) > 1 or activation.pending:
            return thread.read_beside_others(activation)
        return thread.read()

    def levels(self, figures: Sequence[int]) -> list[DeviceLevel]:
        """Return the levels of all devices that were in use, in the order of :attr:`counters`."""
        levels = []
        for counter, offset in zip(self.counters, range(0, len(figures), WIDTH), strict=False):
            allocated, peak, reserved = figures[offset : offset + WIDTH]
            # a peak that was read before the device's first use is below what is allocated now
            most = allocated if 0 <= peak < allocated else peak
            levels.append(DeviceLevel(counter.device, allocated, most, reserved))
        return levels

    def read(self) -> list[DeviceLevel]:
        """Return the levels of all devices in use now."""
        return self.levels(self.figures())

    def end(self) -> None:
        """End the region, if it is on."""
        activation, self._activation = self._activation, None
        self.thread = None
        if activation is not None:
            activation.thread.pop(activation)


_EMPTY_CODE = compile("", "<tensorlens>", "exec")
"""No profiled line is of this code."""


METRIC_DESCRIPTIONS = {
    "allocated": "Bytes that the framework's allocator has handed out",
    "peak": "The most of them at any instant since the last reading",
    "reserved": "Bytes that the allocator holds; on the host the resident set",
}
"""Figure of a :class:`DeviceLevel` to what it is in words, for exporters."""


class LevelReader:
    """Reads the levels of all devices, from any thread; others' measurements keep their peaks."""

    def __init__(self) -> None:
        self._region = MeasuredRegion()
        self._lock = reentrant_lock()
        self._is_closed = False

    def read(self) -> list[DeviceLevel]:
        """Return the levels of the devices in use; nothing before a framework is imported."""
        with self._lock:
            if self._is_closed:
                return []
            if self._region.thread is None:
                if not adapters():
                    return []
                self._region.begin()
            return self._region.read()

    def notes(self) -> list[str]:
        """Return why figures are unknown, and what the frameworks say about theirs."""
        with self._lock:
            missing = [
                f"{counter.device}: {figure} is n/a: {reason}"
                for counter in self._region.counters
                for figure, reason in counter.missing.items()
            ]
            return [*missing, *self._region.notes()]

    def close(self) -> None:
        """Read no more."""
        with self._lock:
            self._is_closed = True
            self._region.end()
