"""Prometheus metrics of memory: a collector, and a file for the node exporter.

::

    from prometheus_client import REGISTRY
    from tensorlens.integrations.prometheus import MemoryCollector, write_textfile
    REGISTRY.register(MemoryCollector())     # beside the program's own metrics
    write_textfile("/var/lib/node_exporter/train.prom")

Needs ``pip install 'tensorlens[prometheus]'``. Nothing here listens on a network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tensorlens import ranks
from tensorlens.guards import guarded
from tensorlens.lines.region import METRIC_DESCRIPTIONS, DeviceLevel, LevelReader


class MemoryCollector(Collector):  # type: ignore[misc]
    """Collects ``tensorlens_memory_allocated_bytes``, ``_peak_bytes`` and ``_reserved_bytes``.

    Labels are ``device`` (``cpu``, ``cuda:0``) and ``rank``, empty in a single process.
    """

    def __init__(self) -> None:
        self._levels = LevelReader()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Return the metrics without values, for the registry."""
        return self._families([])

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the present metrics."""
        levels: list[DeviceLevel] = []
        with guarded("the memory of devices is not exported"):
            levels = self._levels.read()
        return self._families(levels)

    def close(self) -> None:
        """Stop reading; later collections are empty."""
        self._levels.close()

    def _families(self, levels: list[DeviceLevel]) -> Iterator[GaugeMetricFamily]:
        rank = ranks.current_rank()
        own = "" if rank is None else str(rank.number)
        for figure, description in METRIC_DESCRIPTIONS.items():
            name = f"tensorlens_memory_{figure}_bytes"
            family = GaugeMetricFamily(name, description, labels=("device", "rank"))
            for level in levels:
                value = getattr(level, figure)
                if value >= 0:
                    family.add_metric((level.device, own), value)
            yield family


def write_textfile(path: str | os.PathLike[str], collector: MemoryCollector | None = None) -> None:
    """Write the metrics atomically into a file for the node exporter.

    If that fails, one line says so and the program goes on.

    Args:
        path: its name ends in ``.prom``.
        collector: its peaks are since its last reading; without one the peak is the present level.
    """
    registry = CollectorRegistry()
    own = MemoryCollector() if collector is None else None
    registry.register(collector or own)
    try:
        with guarded(f"{path} was not written"):
            write_to_textfile(os.fspath(path), registry)
    finally:
        if own is not None:
            own.close()
