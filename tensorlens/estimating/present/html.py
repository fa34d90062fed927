"""Estimates as HTML: the verdict, the card's memory as a bar, the figures, and the recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorlens.capture.present.html import recording_page
from tensorlens.capture.present.instants import line_rows
from tensorlens.capture.present.modules import module_table
from tensorlens.estimating.present.needs import (
    conditions,
    figures,
    judged,
    largest_batch,
    peak_place,
    spread,
    title,
    verdict,
)
from tensorlens.estimating.present.peak_parts import ON_THE_WAY, UNTOLD, WORKSPACE, Part, peak_parts
from tensorlens.records.estimates import REMAINDER, Estimate, Fit
from tensorlens.records.snapshots import View
from tensorlens.render.figures import exact_size, size
from tensorlens.render.html.colours import ROLE_COLOURS
from tensorlens.render.html.templates import environment

_FEW = 10
_COLOURS = {
    **ROLE_COLOURS,
    ON_THE_WAY: "#d3a4c4",
    WORKSPACE: "#a0522d",
    REMAINDER: "#a8a8a8",
    UNTOLD: "#8c8c8c",
}
_SMALL = 3
"""What is used is drawn once more where it is less than this part of the whole."""
_CACHED, _OUTSIDE, _FREE = "cached", "outside of {}", "free"


@dataclass(frozen=True, slots=True)
class Stripe:
    """A piece of the bar."""

    label: str
    nbytes: int
    colour: str
    """As CSS has it; empty for what has a pattern of its own."""
    kind: str = "used"
    """``used``, ``cached`` or ``free``."""


@dataclass(frozen=True, slots=True)
class Bar:
    """The card's memory in stripes, whose widths are their shares of ``whole``."""

    stripes: tuple[Stripe, ...]
    whole: int
    limit: int | None
    """Where the capacity ends, if the stripes go beyond it."""

    @property
    def zoomed(self) -> Bar | None:
        """What is used alone, where that is too little of the whole to be seen; else None."""
        used = tuple(stripe for stripe in self.stripes if stripe.kind != "free")
        nbytes = sum(stripe.nbytes for stripe in used)
        return Bar(used, nbytes, None) if 0 < nbytes * _SMALL < self.whole else None


def estimate_fragment(estimate: Estimate, view: View) -> str:
    """Return the estimate as one ``<div>``, without any script."""
    return _rendered(estimate, view, page=False)


def estimate_page(estimate: Estimate, view: View) -> str:
    """Return the body of a page: the estimate, and its recording at the peak."""
    recording, device = estimate.recording, estimate.device
    devices = view.devices or ((device,) if device in recording.devices else ())
    shown = replace(view, devices=devices)
    if view.at is None and devices and recording.peak(device).row != estimate.peak_row >= 0:
        # with remainders another instant is the highest
        shown = replace(shown, at=str(estimate.peak_row))
    return _rendered(estimate, view, page=True) + "\n" + recording_page(recording, shown)


def _rendered(estimate: Estimate, view: View, *, page: bool) -> str:
    parts = peak_parts(estimate)
    limit = None if view.top is None else _FEW
    by_line = {line: nbytes for line, nbytes in estimate.by_line.items() if nbytes > 0}
    lines, hidden_lines = line_rows(
        estimate.recording.log, by_line, limit, estimate.peak.by_model_line
    )
    fit = judged(estimate)
    return (
        environment()
        .get_template("estimate.html")
        .render(
            estimate=estimate,
            title=title(estimate),
            largest=largest_batch(estimate.largest),
            verdict=verdict(estimate),
            kind="" if fit is None else fit.verdict.replace(" ", "-"),
            conditions=conditions(estimate),
            figures=figures(estimate),
            peak=f"{exact_size(estimate.peak_allocated)}, {peak_place(estimate)}",
            parts=[(part, _COLOURS.get(part.kind, _COLOURS["other"])) for part in parts.values()],
            bar=bar(estimate, parts, fit),
            lines=() if all(row.line is None for row in lines) else lines,
            hidden_lines=hidden_lines,
            modules=module_table({}, estimate.by_module, limit),
            terms=_terms(estimate),
            spread=spread,
            page=page,
        )
    )


def bar(estimate: Estimate, parts: Mapping[str, Part], fit: Fit | None) -> Bar:
    """Return the memory of the card when most is allocated, what is cached and what is free.

    What is cached is what the peak of reserved memory has beyond it, or as much of it as the
    capacity leaves; it goes back when it must.
    """
    stripes = [
        Stripe(part.label, part.nbytes, _COLOURS.get(part.kind, _COLOURS["other"]))
        for part in parts.values()
        if part.nbytes > 0
    ]
    outside = estimate.apart.point
    reserved = estimate.peak_reserved
    if fit is not None:
        left = fit.capacity - outside
        reserved = max(min(reserved, left), estimate.least_capacity.point)
    cached = max(reserved - estimate.peak_allocated, 0)
    stripes.append(Stripe(_CACHED, cached, "", "cached"))
    stripes.append(Stripe(_OUTSIDE.format(estimate.framework), outside, "#5b6470"))
    used = sum(stripe.nbytes for stripe in stripes)
    capacity = used if fit is None else fit.capacity
    stripes.append(Stripe(_FREE, max(capacity - used, 0), "", "free"))
    shown = tuple(stripe for stripe in stripes if stripe.nbytes)
    return Bar(shown, max(used, capacity), capacity if used > capacity else None)


def _terms(estimate: Estimate) -> Sequence[tuple[str, str, str, str]]:
    """Return each term: where it is, its name, its size, why."""
    framework = estimate.framework
    formulas = [
        ("rule of thumb", each.name, size(each.nbytes), each.why) for each in estimate.formulas
    ]
    return [
        (
            f"outside of {framework}" if term.apart else f"in {framework}'s memory",
            term.name,
            f"{size(term.nbytes.point)}"
            if term.nbytes.is_exact
            else f"{size(term.nbytes.low)} to {size(term.nbytes.high)}",
            term.why,
        )
        for term in sorted(estimate.terms, key=lambda term: term.apart)
    ] + formulas
