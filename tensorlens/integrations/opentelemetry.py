"""Gauges of memory for OpenTelemetry, read whenever its reader collects.

::

    from tensorlens.integrations.opentelemetry import instrument
    instrument()

Needs ``pip install 'tensorlens[opentelemetry]'``; the program sets up where metrics go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from opentelemetry import metrics

from tensorlens import ranks
from tensorlens.guards import guarded
from tensorlens.interpreter import reentrant_lock
from tensorlens.lines.region import METRIC_DESCRIPTIONS, DeviceLevel, LevelReader


def instrument(provider: Any = None) -> Callable[[], None]:
    """Register gauges for each device in use; return a function that ends them.

    * ``tensorlens.memory.allocated``, ``.peak``, ``.reserved``, in bytes, with the attributes
      ``device`` (``cpu``, ``cuda:0``) and, in a distributed job, ``rank``;
    * ``hw.gpu.memory.usage``, the memory reserved by this process on an accelerator, with ``hw.id``
      and ``hw.type``, named by the semantic conventions for hardware metrics.

    Args:
        provider: the meter provider; the global one by default.
    """
    meter = metrics.get_meter("tensorlens", meter_provider=provider)
    collection = _Collection()
    for figure, description in METRIC_DESCRIPTIONS.items():
        meter.create_observable_gauge(
            f"tensorlens.memory.{figure}", [collection.gauge(figure)], "By", description
        )
    meter.create_observable_up_down_counter(
        "hw.gpu.memory.usage",
        [collection.usage],
        "By",
        "GPU memory held by this process's allocator",
    )
    return collection.close


class _Collection:
    """One reading for all gauges of a collection, as each reading starts a new peak."""

    def __init__(self) -> None:
        self._levels = LevelReader()
        self._taken: list[DeviceLevel] = []
        self._given: set[str] = set()
        self._lock = reentrant_lock()

    def gauge(self, figure: str) -> Callable[[Any], Iterable[metrics.Observation]]:
        """Return the callback of one gauge."""

        def observe(options: Any) -> Iterable[metrics.Observation]:
            return [
                metrics.Observation(value, _attributes(level.device))
                for level in self._read(figure)
                if (value := getattr(level, figure)) >= 0
            ]

        return observe

    def usage(self, options: Any) -> Iterable[metrics.Observation]:
        """Observe the reserved memory of each accelerator."""
        return [
            metrics.Observation(level.reserved, {"hw.id": level.device, "hw.type": "gpu"})
            for level in self._read("usage")
            if level.device != "cpu" and level.reserved >= 0
        ]

    def close(self) -> None:
        """Stop observing."""
        self._levels.close()

    def _read(self, asker: str) -> list[DeviceLevel]:
        with self._lock:
            # a gauge that asks for the second time begins a new collection
            if asker in self._given or not self._given:
                self._given.clear()
                self._taken = []
                with guarded("the memory of devices is not exported"):
                    self._taken = self._levels.read()
            self._given.add(asker)
            return self._taken


def _attributes(device: str) -> dict[str, str | int]:
    rank = ranks.current_rank()
    return {"device": device} if rank is None else {"device": device, "rank": rank.number}
