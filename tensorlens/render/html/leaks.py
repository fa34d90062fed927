"""Leak reports as HTML."""

from __future__ import annotations

from tensorlens.records.leaks import LeakReport
from tensorlens.render.html.templates import environment
from tensorlens.render.leakage import Levels, balances, heights, layouts, levels, thinned, watched

_WIDTH, _HEIGHT = 240, 28
_MOST_POINTS = 240


def leak_fragment(report: LeakReport) -> str:
    """Return the report as one ``<div>``."""
    return (
        environment()
        .get_template("leaks.html")
        .render(
            report=report,
            watched=watched(report),
            levels=[(each, _line(each)) for each in levels(report)],
            balances=balances(report),
            leaks=layouts(report),
            box=(_WIDTH, _HEIGHT),
        )
    )


def _line(device: Levels) -> str:
    """Return the points of a line through the levels, as SVG has them."""
    series = thinned(device.known, _MOST_POINTS)
    across = _WIDTH / max(1, len(series) - 1)
    points = [
        f"{at * across:.1f},{(1 - height) * (_HEIGHT - 4) + 2:.1f}"
        for at, height in enumerate(heights(series))
    ]
    return " ".join(points if len(points) > 1 else [*points, f"{_WIDTH}.0,{_HEIGHT - 2}.0"])
