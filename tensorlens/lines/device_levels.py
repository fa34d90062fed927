"""The memory of each device now, for what exports it: allocated, its peak, reserved."""

from __future__ import annotations

from tensorlens.frameworks.registry import adapters
from tensorlens.interpreter import reentrant_lock
from tensorlens.lines.region import DeviceLevel, MeasuredRegion

FIGURES = {
    "allocated": "Bytes that the framework's allocator has handed out",
    "peak": "The most of them at any instant since the last reading",
    "reserved": "Bytes that the allocator holds; on the host the resident set",
}
"""Figure of a :class:`DeviceLevel` to its description, for exporters."""


class DeviceLevels:
    """Reads them, from any thread; what others measure meanwhile keeps its own peaks."""

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
