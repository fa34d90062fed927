"""What text and HTML say of suggestions, the same in both."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.suggestions import COUNTED, REPLAYED, SIMULATED, Suggestion, Suggestions
from tensorlens.render.figures import UNKNOWN, size

PREDICTED = ("change", "saves", "of", "then", "predicted")
VERIFIED = ("change", "predicted", "measured", "off", "of", "then", "time")
_OF = VERIFIED.index("of")
"""Left out where all is of the peak."""
_PEAK, _QUEUE = "peak", "queue"
_UNMEASURED = "unmeasured"

_HOW = {
    REPLAYED: "replayed: the recording, with tensors gone, freed earlier or computed again",
    SIMULATED: "simulated: the step with the change, run on tensors without data",
    COUNTED: "counted: batches that loaders ask for ahead of the step, times the bytes of one",
}


def headline(found: Suggestions) -> str:
    """Return what it is of."""
    of = f" of {found.program}" if found.program else ""
    return f"What would save most{of}: on {found.device}"


def conditions(found: Suggestions) -> str:
    """Return what the savings are savings of."""
    return f"peak {size(found.peak)}, {found.moment}; each change by itself"


def titles(found: Suggestions) -> Sequence[str]:
    """Return the titles of :func:`rows`."""
    return _without_of(found, VERIFIED) if found.verified else PREDICTED


def rows(found: Suggestions) -> tuple[tuple[str, ...], ...]:
    """Return a row for each change."""
    if found.verified:
        return tuple(_without_of(found, _verified(each)) for each in found)
    return tuple(_predicted(found, each) for each in found)


def details(suggestion: Suggestion) -> tuple[str, ...]:
    """Return what it is about, what it costs, and why it is not measured."""
    cost = f"cost: {suggestion.cost}" if suggestion.cost else ""
    missing = f"not measured: {suggestion.missing}" if suggestion.missing else ""
    return tuple(filter(None, (suggestion.what, cost, missing)))


def remarks(found: Suggestions) -> tuple[str, ...]:
    """Return what has to be said below the tables."""
    said = []
    if not found.suggestions:
        said.append("nothing that was tried saves 1 % of the peak or more")
    if found.others:
        said.append(f"less than these: {', '.join(found.others)}")
    said += [text for how, text in _HOW.items() if any(each.how == how for each in found)]
    if any(each.measured_time is not None for each in found):
        said.append(
            "time: of a step, as a ratio to the program as it is; compare() tells its noise"
        )
    if found.measured_peak is not None and found.measured_peak != found.peak:
        said.append(f"measured without any change: {size(found.measured_peak)}")
    return (*said, *found.notes)


def _predicted(found: Suggestions, each: Suggestion) -> tuple[str, ...]:
    before = found.peak if each.before is None else each.before
    part = 100 * each.predicted_saving / before if before else 0.0
    return (
        each.change,
        size(each.predicted_saving),
        f"{part:.1f} % of {_of(each)}",
        size(each.predicted_peak),
        each.how,
    )


def _without_of(found: Suggestions, row: tuple[str, ...]) -> tuple[str, ...]:
    if any(each.memory for each in found):
        return row
    return row[:_OF] + row[_OF + 1 :]


def _verified(each: Suggestion) -> tuple[str, ...]:
    time = each.measured_time
    return (
        each.change,
        size(each.predicted_saving),
        _UNMEASURED if each.missing else size(each.measured_saving),
        _off(each),
        _of(each),
        size(each.predicted_peak if each.measured_peak is None else each.measured_peak),
        UNKNOWN if time is None else f"x{time:.2f}",
    )


def _of(each: Suggestion) -> str:
    return _QUEUE if each.memory else _PEAK


def _off(each: Suggestion) -> str:
    if each.off is None:
        return UNKNOWN
    return "exact" if each.predicted_saving == each.measured_saving else f"{100 * each.off:+.1f} %"
