"""What is said of a comparison, the same in text and HTML."""

from __future__ import annotations

from tensorlens.records.comparisons import CANNOT, Comparison, LossCheck, Outcome
from tensorlens.records.spread import Ratio, spread
from tensorlens.render.figures import UNKNOWN, size

TITLES = (
    *("option", "peak", "against", "reserved", "least capacity", "largest batch"),
    *("held ahead", "time", "loss"),
)
WINNER_TITLES = ("question", "option", "answer")
_NOTHING = "-"


def headline(found: Comparison) -> str:
    """Return the title: what was compared, and where."""
    of = f" of {found.program}" if found.program else ""
    where = f"{found.device}, {found.card}" if found.card else found.device
    return f"Memory options{of}: {found.provenance} on {where}"


def conditions(found: Comparison) -> str:
    """Return under which conditions the figures hold."""
    parts = []
    if found.batch is not None:
        parts.append(f"batch {found.batch:,}")
    if found.provenance == "measured":
        runs = "run" if found.repeats == 1 else "runs"
        steps = "step" if found.steps == 1 else "steps"
        parts.append(
            f"{found.repeats} {runs} of {found.steps} {steps} each, a process for each run"
        )
    if found.capacity is not None:
        parts.append(f"largest batch under {size(found.capacity)}")
    parts.append(f"against {found.baseline!r}")
    return ", ".join(parts)


def shown_columns(found: Comparison) -> tuple[int, ...]:
    """Return the places in :data:`TITLES` of columns that have a figure in any row."""
    rows = option_rows(found)
    return tuple(
        place
        for place in range(len(TITLES))
        if place in (0, 1, 2) or any(row[place] not in (_NOTHING, UNKNOWN, "") for row in rows)
    )


def option_rows(found: Comparison) -> tuple[tuple[str, ...], ...]:
    """Return a row of :data:`TITLES` for each option that has figures."""
    return tuple(_row(found, each) for each in found.outcomes if each.ran)


def _row(found: Comparison, outcome: Outcome) -> tuple[str, ...]:
    batch = outcome.largest_batch
    return (
        outcome.name,
        size(outcome.peak_allocated),
        _against(found, outcome),
        size(outcome.peak_reserved),
        size(outcome.least_capacity),
        UNKNOWN if batch is None else f"{batch:,}",
        size(outcome.held_ahead),
        time_text(found.time_ratio(outcome.name), is_baseline=outcome.name == found.baseline),
        loss_text(found, outcome),
    )


def _against(found: Comparison, outcome: Outcome) -> str:
    before = found[found.baseline].peak_allocated
    if outcome.name == found.baseline:
        return "baseline"
    if not before or outcome.peak_allocated is None:
        return UNKNOWN
    part = 100 * (outcome.peak_allocated / before - 1)
    return "same" if outcome.peak_allocated == before else f"{part:+.1f} %"


def time_text(ratio: Ratio | None, *, is_baseline: bool = False) -> str:
    """Return a ratio of times as text: ``x1.31 +-0.04``, ``no difference``."""
    if ratio is None:
        return UNKNOWN
    if is_baseline:
        return "x1"
    if ratio.low is None or ratio.high is None:
        return f"x{ratio.point:.2f} +-?"
    half = (ratio.high - ratio.low) / 2
    noise = f"+-{half:.2f}" if half < ratio.point else "unsure"
    text = f"x{ratio.point:.2f} {noise}"
    return f"{text} =" if ratio.verdict == "no difference" else text


def loss_text(found: Comparison, outcome: Outcome) -> str:
    """Return how an option's losses are to the baseline's."""
    if not outcome.losses:
        return UNKNOWN
    if outcome.name == found.baseline:
        return _NOTHING
    check = found.loss_check(outcome.name)
    return UNKNOWN if check is None else _loss_words(check)


def _loss_words(check: LossCheck) -> str:
    if check.verdict != "differs":
        return check.verdict
    return "not finite" if check.first == float("inf") else f"{100 * check.first:.2g} % off"


def failure_rows(found: Comparison) -> tuple[tuple[str, str], ...]:
    """Return each option without figures, and why."""
    return tuple(
        (each.name, each.why if each.status == CANNOT else f"{each.status}: {each.why}")
        for each in found.outcomes
        if not each.ran
    )


def winner_rows(found: Comparison) -> tuple[tuple[str, str, str], ...]:
    """Return the winner of each question."""
    rows = []
    for winner in found.winners:
        names = ", ".join(winner.names) or _NOTHING
        off = [name for name in winner.names if _is_off(found, name)]
        warning = f"; the loss differs: {', '.join(off)}" if off else ""
        rows.append((winner.question, names, winner.why + warning))
    if found.pareto:
        less = "none takes less memory and no more time"
        rows.append(("Pareto set", ", ".join(found.pareto), less))
    return tuple(rows)


def _is_off(found: Comparison, name: str) -> bool:
    check = found.loss_check(name)
    return check is not None and check.verdict == "differs"


def remarks(found: Comparison) -> tuple[str, ...]:
    """Return what has to be said below the tables."""
    said = list(found.notes)
    if any(each.seconds for each in found.outcomes):
        said.append(_noise(found))
    said += [
        f"{each.name}, largest batch {each.largest_batch:,}: {each.beyond}"
        for each in found.outcomes
        if each.largest_batch is not None and each.beyond
    ]
    if any(each.held_ahead is not None for each in found.outcomes):
        said.append("held ahead: by DataLoaders when their queues are full; it is beside the peak")
    if any("same at first" == loss_text(found, each) for each in found.outcomes):
        said.append("same at first: the loss of the first step is the baseline's, later ones not")
    noted: dict[str, list[str]] = {}
    for each in found.outcomes:
        for note in each.notes:
            noted.setdefault(note, []).append(each.name)
        for figure, why in each.missing.items() if each.ran else ():
            if (found.capacity is None and figure == "largest_batch") or not why:
                continue
            noted.setdefault(f"no {figure.replace('_', ' ')}: {why}", []).append(each.name)
    everywhere = sum(each.ran for each in found.outcomes)
    said += [
        note if len(names) == everywhere else f"{', '.join(names)}: {note}"
        for note, names in noted.items()
    ]
    return tuple(said)


def _noise(found: Comparison) -> str:
    if found.repeats < 2:
        return "noise is unknown: the times are of one run each (repeats=3 tells)"
    apart = spread(found[found.baseline].seconds)
    own = "" if apart is None else f"; the baseline's runs lie {100 * apart:.0f} % apart"
    return (
        "time: mean ratio of the runs taken in turns, +- half of its 95 % interval;"
        f" = is no difference{own}"
    )
