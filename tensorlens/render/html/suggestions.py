"""Suggestions as HTML: savings, what each leaves of the peak as bars, what to write."""

from __future__ import annotations

from dataclasses import dataclass

from tensorlens.records.suggestions import Suggestions
from tensorlens.render.figures import size
from tensorlens.render.html.templates import environment
from tensorlens.render.source import printable
from tensorlens.render.suggesting import conditions, details, headline, remarks, rows, titles


@dataclass(frozen=True, slots=True)
class Bar:
    """One peak."""

    name: str
    text: str
    part: float
    """Of the peak as it is, 0 to 100."""
    is_change: bool


def suggestion_fragment(found: Suggestions) -> str:
    """Return suggestions as one ``<div>``, without any script."""
    return (
        environment()
        .get_template("suggestions.html")
        .render(
            headline=headline(found),
            conditions=conditions(found),
            titles=titles(found),
            rows=rows(found),
            bars=bars(found),
            changes=[(each.change, each.code, details(each)) for each in found],
            remarks=remarks(found),
        )
    )


def bars(found: Suggestions) -> tuple[Bar, ...]:
    """Return the peak as it is and with each change to it, measured where it was."""
    whole = found.peak or 1
    changed = [
        (each, each.predicted_peak if each.measured_peak is None else each.measured_peak)
        for each in found
        if not each.memory
    ]
    if not changed:
        return ()
    return (
        Bar("as it is", size(found.peak), 100.0, False),
        *(
            Bar(printable(each.change), size(peak), min(100 * peak / whole, 100.0), True)
            for each, peak in changed
        ),
    )
