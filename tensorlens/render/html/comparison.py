"""Comparisons of options as HTML: tables, and memory against time as a picture."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.records.comparisons import Comparison, Outcome
from tensorlens.render.comparing import (
    TITLES,
    WINNER_TITLES,
    conditions,
    failure_rows,
    headline,
    option_rows,
    remarks,
    shown_columns,
    time_text,
    winner_rows,
)
from tensorlens.render.figures import size
from tensorlens.render.html.templates import environment
from tensorlens.render.source import printable

WIDTH, HEIGHT, ROOM = 720, 300, 46
"""Of the picture, in its own units, and of the room for its labels."""


@dataclass(frozen=True, slots=True)
class Point:
    """One option in the picture."""

    name: str
    title: str
    x: float
    y: float
    low: float
    """Where the interval of its time begins and ends."""
    high: float
    is_best: bool
    """Whether it is in the Pareto set."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One option's peak."""

    name: str
    text: str
    part: float
    """Of the highest, 0 to 100."""
    is_best: bool


def comparison_fragment(found: Comparison) -> str:
    """Return a comparison as one ``<div>``, without any script."""
    columns = shown_columns(found)
    return (
        environment()
        .get_template("comparison.html")
        .render(
            headline=headline(found),
            conditions=conditions(found),
            provenance=found.provenance,
            titles=[TITLES[place] for place in columns],
            rows=[[row[place] for place in columns] for row in option_rows(found)],
            winner_titles=WINNER_TITLES,
            winners=winner_rows(found),
            failures=failure_rows(found),
            remarks=remarks(found),
            points=points(found),
            bars=bars(found),
            width=WIDTH,
            height=HEIGHT,
            room=ROOM,
        )
    )


def bars(found: Comparison) -> tuple[Bar, ...]:
    """Return the peaks, in the order of the options."""
    known = _known(found)
    highest = max((peak for _, peak in known), default=0)
    least = found.winners[0].names
    return tuple(
        Bar(
            printable(each.name),
            size(peak),
            100 * peak / highest if highest else 0.0,
            each.name in least,
        )
        for each, peak in known
    )


def points(found: Comparison) -> tuple[Point, ...]:
    """Return where each option is: time to the right, memory upwards; none without times."""
    known = [
        (each, peak, ratio)
        for each, peak in _known(found)
        if (ratio := found.time_ratio(each.name)) is not None
    ]
    if len(known) < 2:
        return ()
    ends = [end for _, _, ratio in known for end in (ratio.point, ratio.low, ratio.high) if end]
    # an interval of two runs may reach far beyond the picture
    last = min(max(ends), 2 * max(ratio.point for _, _, ratio in known))
    highest = max(peak for _, peak, _ in known) or 1
    pareto = found.pareto

    def across(value: float) -> float:
        return round(ROOM + (WIDTH - 2 * ROOM) * min(value / last, 1.0), 1)

    return tuple(
        Point(
            printable(each.name),
            f"{printable(each.name)}: {size(peak)}, {time_text(ratio)}",
            across(ratio.point),
            round(HEIGHT - ROOM - (HEIGHT - 2 * ROOM) * peak / highest, 1),
            across(ratio.low if ratio.low is not None else ratio.point),
            across(ratio.high if ratio.high is not None else ratio.point),
            each.name in pareto,
        )
        for each, peak, ratio in known
    )


def _known(found: Comparison) -> list[tuple[Outcome, int]]:
    return [
        (each, each.peak_allocated)
        for each in found.outcomes
        if each.ran and each.peak_allocated is not None
    ]
