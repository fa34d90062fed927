"""Suggestions as rows, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.suggestions import Suggestions

Value = str | int | float | None

COLUMNS = (
    *("kind", "change", "what", "code", "cost", "settings", "how"),
    *("memory", "before", "predicted_peak", "predicted_saving"),
    *("measured_peak", "measured_saving", "time_ratio", "missing"),
)
NUMBERS = ("time_ratio",)
TEXT = ("kind", "change", "what", "code", "cost", "settings", "how", "memory", "missing")


def rows(found: Suggestions) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every change."""
    for each in found:
        yield (
            each.kind,
            each.change,
            each.what,
            each.code,
            each.cost or None,
            ", ".join(each.settings) or None,
            each.how,
            each.memory or "peak",
            found.peak if each.before is None else each.before,
            each.predicted_peak,
            each.predicted_saving,
            each.measured_peak,
            each.measured_saving,
            each.measured_time,
            each.missing or None,
        )
