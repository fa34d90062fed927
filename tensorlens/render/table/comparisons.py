"""Comparisons as rows, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.comparisons import Comparison

Value = str | int | float | None

COLUMNS = (
    *("option", "settings", "status", "why", "peak_allocated", "peak_reserved"),
    *("setup_allocated", "least_capacity", "largest_batch", "held_ahead"),
    *("time_ratio", "time_low", "time_high", "time", "loss"),
)
"""The columns: ``time`` and ``loss`` are verdicts, ``time_low`` to ``time_high`` the interval."""
TEXT = ("option", "settings", "status", "why", "time", "loss")
NUMBERS = ("time_ratio", "time_low", "time_high")


def rows(found: Comparison) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every option."""
    for each in found.outcomes:
        ratio, check = found.time_ratio(each.name), found.loss_check(each.name)
        times = (
            (None,) * 4 if ratio is None else (ratio.point, ratio.low, ratio.high, ratio.verdict)
        )
        yield (
            each.name,
            ", ".join(each.settings) or None,
            each.status,
            each.why or None,
            each.peak_allocated,
            each.peak_reserved,
            each.setup_allocated,
            each.least_capacity,
            each.largest_batch,
            each.held_ahead,
            *times,
            None if check is None else check.verdict,
        )
