"""The memory of each device now, for what exports it: allocated, its peak, reserved."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens import locks
from tensorlens.frameworks.registry import adapters
from tensorlens.lines.region import MeasuredRegion
from tensorlens.lines.tracing.accounting import WIDTH

FIGURES = {
    "allocated": "Bytes that the framework's allocator has handed out",
    "peak": "The most of them at any instant since the last reading",
    "reserved": "Bytes that the allocator holds; on the host the resident set",
}
"""Figure of a :class:`DeviceLevel` to its description, for exporters."""


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


class DeviceLevels:
    """Reads them, from any thread; what others measure meanwhile keeps its own peaks."""

    def __init__(self) -> None:
        self._region = MeasuredRegion()
        self._lock = locks.reentrant()
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
            figures = self._region.read()
            levels = []
            for slot, counter in enumerate(self._region.counters):
                allocated, peak, reserved = figures[slot * WIDTH : (slot + 1) * WIDTH]
                most = max(allocated, peak) if peak >= 0 else peak
                levels.append(DeviceLevel(counter.device, allocated, most, reserved))
            return levels

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
