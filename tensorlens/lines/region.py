"""A region of the program between two calls of ours, measured beside its profiled lines.

Reading a counter resets its peak for everybody. A region is therefore registered as one more
thread inside profiled code: each side's reads raise the other's peaks.
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
    """Bytes handed out by the framework's allocator."""
    peak: int
    """The largest ``allocated`` since the last read."""
    reserved: int
    """Bytes held by the allocator; on the host the resident set of the process."""


class MeasuredRegion:
    """A region in which every counter can be read, between :meth:`begin` and :meth:`end`.

    :meth:`end` can be called from any thread, also long after an exception.
    """

    def __init__(self, shared: Engine = engine) -> None:
        self._engine = shared
        self._activation: Activation | None = None
        self.thread: int | None = None
        """Identity of the thread it began in; None if it is off."""

    def begin(self) -> list[DeviceLevel]:
        """Begin, with frameworks imported since; return the first read."""
        self.end()
        self._engine.refresh_counters()
        # no thread has a negative identity
        state = ThreadState(-id(self), self._engine)
        self._activation = Activation(_EMPTY_CODE, (), state)
        self._activation.enter()
        self.thread = threading.get_ident()
        return self.read()

    @property
    def counters(self) -> Sequence[Counter]:
        """The counters that a read covers, in order."""
        return self._engine.counters.counters

    def notes(self) -> list[str]:
        """Return the notes on the figures, one line each."""
        return self._engine.counters.notes()

    def figures(self) -> Sequence[int]:
        """Read every counter, as input for :meth:`levels`; return nothing if the region is off.

        Runs once per phase of a step, with cold caches: keep it to as few calls as possible.
        """
        activation = self._activation
        if activation is None:
            return ()
        thread = activation.thread
        if thread.generation != thread.counters.generation:
            thread.renew()
        if len(thread.busy) > 1 or activation.missed_peaks:
            return thread.read_and_raise_peaks(activation)
        return thread.read()

    def levels(self, figures: Sequence[int]) -> list[DeviceLevel]:
        """Return the levels of all devices in use, in the order of :attr:`counters`."""
        levels = []
        for counter, offset in zip(self.counters, range(0, len(figures), WIDTH), strict=False):
            allocated, peak, reserved = figures[offset : offset + WIDTH]
            # a peak from before the device's first use is below what is allocated now
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
"""Code without any profiled line."""


METRIC_DESCRIPTIONS = {
    "allocated": "Bytes that the framework's allocator has handed out",
    "peak": "The most of them at any instant since the last reading",
    "reserved": "Bytes that the allocator holds; on the host the resident set",
}
"""Field of :class:`DeviceLevel` to its description, for exporters."""


class LevelReader:
    """Reader of all devices' levels, for any thread; lines and other regions keep their peaks."""

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
        """Return why figures are unknown, and the notes of the frameworks."""
        with self._lock:
            missing = [
                f"{counter.device}: {figure} is n/a: {reason}"
                for counter in self._region.counters
                for figure, reason in counter.missing.items()
            ]
            return [*missing, *self._region.notes()]

    def close(self) -> None:
        """Stop reading: :meth:`read` returns nothing from now on."""
        with self._lock:
            self._is_closed = True
            self._region.end()
