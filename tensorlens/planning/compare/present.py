"""Presents a comparison: the winners, the options, those that did not run, remarks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.planning.compare.result import ONE_RUN, QUICK, Comparison, Outcome, Status, spread
from tensorlens.render.blocks import (
    Bar,
    Bars,
    Block,
    Column,
    Heading,
    Note,
    Rows,
    Section,
    Table,
    named,
)
from tensorlens.render.figures import NOT_AVAILABLE, counted, size
from tensorlens.render.shown import View

_FIGURES = (
    *("peak_allocated", "peak_reserved"),
    *("setup_allocated", "least_capacity", "largest_batch", "held_ahead"),
)
_COLUMNS = (
    *("option", "settings", "status", "why", *_FIGURES),
    *("time_ratio", "time_low", "time_high", "time", "loss"),
)
"""``time`` and ``loss`` are verdicts, ``time_low`` and ``time_high`` the ends of the interval."""
_TEXTS = ("option", "settings", "status", "why", "time", "loss")
_FRACTIONS = ("time_ratio", "time_low", "time_high")

TITLE = "memory options compared"


def blocks(found: Comparison, view: View) -> Sequence[Block]:
    """Return the winners, the options, those that did not run, and remarks."""
    program = f" of {found.program}" if found.program else ""
    where = f"{found.device}, {found.card}" if found.card else found.device
    text = f"Memory options{program}: {found.provenance} on {where}"
    shown: list[Block] = [Heading(text, conditions=(_conditions(found),))]
    winners = _winners(found)
    sentences = tuple(
        f"{question}: {names}, {why}" if names == NOT_AVAILABLE else f"{question}: {names} ({why})"
        for question, names, why in winners
    )
    columns = tuple(Column(each, "text") for each in ("question", "option", "answer"))
    shown.append(Table(columns, winners, sentences=sentences))
    if any(each.ran for each in found.outcomes):
        shown.append(_options(found))
    shown += _peaks(found)
    failures = tuple(Note(_failure(each)) for each in found.outcomes if not each.ran)
    if failures:
        shown.append(Section(failures, "Without figures"))
    shown += _bars(found)
    return [*shown, Section(tuple(map(Note, _remarks(found))))]


def rows(found: Comparison) -> Rows:
    """Return one row per option."""
    return Rows(_COLUMNS, _rows(found), _TEXTS, _FRACTIONS)


def _options(found: Comparison) -> Table:
    ran = [each for each in found.outcomes if each.ran]
    always: dict[Column, Sequence[str]] = {
        Column("option", "name", most=28): [each.name for each in ran],
        Column("peak"): [size(each.peak_allocated) for each in ran],
        Column("against", rank=3): [_against(found, each) for each in ran],
    }
    optional: dict[Column, Sequence[str]] = {
        Column("reserved", rank=0): [size(each.peak_reserved) for each in ran],
        Column("needs", rank=1): [size(each.least_capacity) for each in ran],
        Column("largest batch"): [_batch_text(each.largest_batch) for each in ran],
        Column("held ahead", rank=4): [size(each.held_ahead) for each in ran],
        Column("time"): [_time_text(found, each) for each in ran],
        Column("loss", rank=2): [_loss_text(found, each) for each in ran],
    }
    known = {
        column: cells
        for column, cells in optional.items()
        if any(cell not in ("-", NOT_AVAILABLE) for cell in cells)
    }
    columns = always | known
    return Table(tuple(columns), tuple(zip(*columns.values(), strict=True)))


def _failure(outcome: Outcome) -> str:
    if outcome.status == Status.CANNOT:
        has_name = outcome.why.startswith((f"{outcome.name} ", f"{outcome.name}:"))
        return outcome.why if has_name else f"{outcome.name}: {outcome.why}"
    return f"{outcome.name}: {outcome.status}: {outcome.why}"


def _peaks(found: Comparison) -> Iterator[Section]:
    """Yield the largest parts of the peak, of the baseline and the options that need least."""
    for name in dict.fromkeys((found.baseline, *found.winners[0].names)):
        if at_peak := found[name].at_peak:
            yield Section((named(tuple(at_peak.items())),), f"At the peak of {name!r}")


def _bars(found: Comparison) -> Iterator[Bars]:
    known = [
        (each.name, each.peak_allocated)
        for each in found.outcomes
        if each.ran and each.peak_allocated is not None
    ]
    highest = max((peak for _, peak in known), default=0) or 1
    least = found.winners[0].names
    if known:
        bars = (Bar(name, size(peak), peak / highest, name in least) for name, peak in known)
        yield Bars("Peak allocated", tuple(bars))


def _conditions(found: Comparison) -> str:
    parts = []
    if found.batch is not None:
        parts.append(f"batch {found.batch:,}")
    if found.provenance == "measured":
        runs, steps = counted(found.repeats, "run"), counted(found.steps, "step")
        parts.append(f"{runs} of {steps} each, a process for each run")
    if found.capacity is not None:
        parts.append(f"largest batch under {size(found.capacity)}")
    parts.append(f"against {found.baseline!r}")
    return ", ".join(parts)


def _batch_text(batch: int | None) -> str:
    return NOT_AVAILABLE if batch is None else f"{batch:,}"


def _against(found: Comparison, outcome: Outcome) -> str:
    before = found[found.baseline].peak_allocated
    if outcome.name == found.baseline:
        return "baseline"
    if not before or outcome.peak_allocated is None:
        return NOT_AVAILABLE
    part = 100 * (outcome.peak_allocated / before - 1)
    return "same" if outcome.peak_allocated == before else f"{part:+.1f} %"


def _time_text(found: Comparison, outcome: Outcome) -> str:
    """Return the time as a ratio to the baseline's: ``x1.31 ±0.04``, ``same ±0.02``."""
    ratio = found.time_ratio(outcome.name)
    if outcome.name == found.baseline and ratio is not None:
        return "x1"
    if ratio is None or ratio.half_width is None:
        return NOT_AVAILABLE
    if not ratio.is_known:
        return "too noisy"
    change = "same" if ratio.verdict == "no difference" else f"x{ratio.point:.2f}"
    return f"{change} ±{ratio.half_width:.2f}"


def _loss_text(found: Comparison, outcome: Outcome) -> str:
    if not outcome.losses:
        return NOT_AVAILABLE
    if outcome.name == found.baseline:
        return "-"
    check = found.loss_check(outcome.name)
    if check is None or check.verdict != "differs":
        return NOT_AVAILABLE if check is None else check.verdict
    return "not finite" if check.first == float("inf") else f"{100 * check.first:.2g} % off"


def _winners(found: Comparison) -> tuple[tuple[str, str, str], ...]:
    rows = []
    for winner in found.winners:
        if winner.question == QUICK and found.provenance == "estimated":
            continue  # the title says that there are no times
        names = ", ".join(winner.names) or NOT_AVAILABLE
        checks = {name: found.loss_check(name) for name in winner.names}
        off = [name for name, check in checks.items() if check and check.verdict == "differs"]
        warning = f"; the loss differs: {', '.join(off)}" if off else ""
        rows.append((winner.question, names, winner.why + warning))
    if found.pareto:
        why = "no option is both smaller and as fast"
        rows.append(("Pareto set", ", ".join(found.pareto), why))
    return tuple(rows)


def _remarks(found: Comparison) -> tuple[str, ...]:
    said = list(found.notes)
    if any(each.seconds for each in found.outcomes):
        said.append(_noise(found))
    said += [
        f"{each.name}, largest batch {each.largest_batch:,}: {each.beyond}"
        for each in found.outcomes
        if each.largest_batch is not None and each.beyond
    ]
    if any(each.held_ahead is not None for each in found.outcomes):
        said.append("held ahead: batches in the full queues of DataLoaders; not part of the peak")
    if any("same at first" == _loss_text(found, each) for each in found.outcomes):
        said.append("same at first: the first loss matches the baseline, later ones differ")
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
        note
        if len(names) == everywhere or note.startswith(f"{names[0]}:")
        else f"{', '.join(names)}: {note}"
        for note, names in noted.items()
    ]
    return tuple(said)


def _noise(found: Comparison) -> str:
    if found.repeats < 2:
        return f"time: n/a, timing noise unknown after {ONE_RUN}"
    relative = spread(found[found.baseline].seconds)
    own = "" if relative is None else f" The baseline's runs lie {100 * relative:.0f} % apart."
    return (
        "time: mean ratio to the baseline, ± half of its 95 % interval; same: no difference is"
        f" seen.{own}"
    )


def _rows(found: Comparison) -> Iterator[tuple[str | int | float | None, ...]]:
    for each in found.outcomes:
        ratio, check = found.time_ratio(each.name), found.loss_check(each.name)
        times: tuple[float | str | None, ...] = (None,) * 4
        if ratio is not None:
            point = None if ratio.low is None else ratio.point
            times = (point, ratio.low, ratio.high, ratio.verdict)
        figures = (getattr(each, name) for name in _FIGURES)
        texts = (each.name, ", ".join(each.settings) or None, each.status, each.why or None)
        yield *texts, *figures, *times, None if check is None else check.verdict
