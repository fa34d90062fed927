"""Presents suggestions: the saving, the code and the cost of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.planning.compare.result import ONE_RUN
from tensorlens.planning.suggest.result import Method, Suggestion, Suggestions
from tensorlens.render.blocks import (
    Bar,
    Bars,
    Block,
    Column,
    Heading,
    Item,
    Note,
    Rows,
    Section,
    Table,
)
from tensorlens.render.figures import NOT_AVAILABLE, size
from tensorlens.render.shown import View

_COSTS = {"checkpoint": "time", "bf16": "precision", "optimizer": "tuning", "queue": "waiting"}
"""Kind of change to its cost in a word."""

_HOW = {
    Method.REPLAYED: "replayed: the recording, with tensors gone, freed earlier or computed again",
    Method.SIMULATED: "simulated: the step with the change, run on tensors without data",
    Method.COUNTED: (
        "counted: batches that loaders ask for ahead of the step, times the bytes of one"
    ),
}
_COLUMNS = (
    *("kind", "change", "what", "code", "cost", "settings", "how"),
    *("memory", "before", "predicted_peak", "predicted_saving"),
    *("measured_peak", "measured_saving", "time_ratio", "missing"),
)
_TEXTS = ("kind", "change", "what", "code", "cost", "settings", "how", "memory", "missing")

TITLE = "biggest savings"


def blocks(found: Suggestions, view: View) -> Sequence[Block]:
    """Return the savings, the code of each change, and remarks."""
    program = f" for {found.program}" if found.program else ""
    conditions = [f"peak {size(found.peak)}, {found.moment}; each change alone"]
    conditions += [f"line {found.line}"] if found.line else []
    conditions += [f"tensor {found.tensor}"] if found.tensor else []
    free = [f"{each.change}, saves {size(each.predicted_saving)}" for each in found if each.is_free]
    conditions += [f"free changes: {'; '.join(free)}"] if free else []
    heading = f"Biggest savings{program} ({found.device})"
    shown: list[Block] = [Heading(heading, conditions=tuple(conditions))]
    count = len(found.suggestions)
    if count:
        shown += [_table(found), *_bars(found)]
        shown += [
            Item(number, count, each.change, code=each.code, notes=_notes(each))
            for number, each in enumerate(found, 1)
        ]
    return [*shown, Section(tuple(map(Note, _remarks(found))))]


def rows(found: Suggestions) -> Rows:
    """Return one row per change."""
    return Rows(_COLUMNS, (_row(found, each) for each in found), _TEXTS, ("time_ratio",))


def _table(found: Suggestions) -> Table:
    columns = _verified(found) if found.verified else _predicted(found)
    numbers = tuple(str(number) for number in range(1, len(found) + 1))
    return Table((Column(""), *columns), tuple(zip(numbers, *columns.values(), strict=True)))


def _bars(found: Suggestions) -> Iterator[Bars]:
    """Yield the peaks of the unchanged program and with each change, measured if known."""
    whole = found.peak or 1
    peaks = [
        (each.change, each.predicted_peak if each.measured_peak is None else each.measured_peak)
        for each in found
        if not each.memory
    ]
    if peaks:
        changed = (Bar(name, size(peak), min(peak / whole, 1.0), True) for name, peak in peaks)
        yield Bars("Peak with each change", (Bar("as it is", size(found.peak), 1.0), *changed))


def _notes(suggestion: Suggestion) -> tuple[str, ...]:
    cost = f"cost: {suggestion.cost}" if suggestion.cost else ""
    missing = f"not measured: {suggestion.missing}" if suggestion.missing else ""
    return tuple(filter(None, (suggestion.what, cost, missing)))


def _remarks(found: Suggestions) -> tuple[str, ...]:
    remarks = []
    if not found.suggestions:
        remarks.append("nothing that was tried saves 1 % of the peak or more")
    if found.others:
        remarks.append(f"less than these: {', '.join(found.others)}")
    remarks += [text for how, text in _HOW.items() if any(each.how == how for each in found)]
    lost = any(each.measured_time is None and each.measured_noise is not None for each in found)
    if any(each.measured_time is not None for each in found):
        remarks.append(
            "time: of a step, as a ratio to the program as it is, ± half of its 95 % interval"
            + ("; n/a: lost in noise, ask for more --repeats" if lost else "")
        )
    elif lost:
        remarks.append("time: n/a, lost in noise, ask for more --repeats")
    elif any(each.measured_peak is not None for each in found):
        remarks.append(f"time: n/a, timing noise unknown after {ONE_RUN}")
    if found.measured_peak is not None and found.measured_peak != found.peak:
        remarks.append(f"measured without any change: {size(found.measured_peak)}")
    return (*remarks, *found.notes)


def _predicted(found: Suggestions) -> dict[Column, tuple[str, ...]]:
    """Return the columns of predictions, each with its cells."""
    before = [found.peak if each.before is None else each.before for each in found]
    shares = [
        f"{100 * each.predicted_saving / whole if whole else 0.0:.1f} %"
        for each, whole in zip(found, before, strict=True)
    ]
    return {
        Column("change", "name"): tuple(each.change for each in found),
        Column("saves"): tuple(size(each.predicted_saving) for each in found),
        Column("share" if any(each.memory for each in found) else "of peak"): tuple(shares),
        **_memory(found),
        Column("after"): tuple(size(each.predicted_peak) for each in found),
        Column("cost", "text"): tuple(map(_cost, found)),
        Column("method", "text", rank=0): tuple(each.how for each in found),
    }


def _verified(found: Suggestions) -> dict[Column, tuple[str, ...]]:
    after = (
        each.predicted_peak if each.measured_peak is None else each.measured_peak for each in found
    )
    times = [each.measured_time for each in found]
    texts = tuple(map(_time, found))
    return {
        Column("change", "name"): tuple(each.change for each in found),
        Column("predicted"): tuple(size(each.predicted_saving) for each in found),
        Column("measured"): tuple(
            "unmeasured" if each.missing else size(each.measured_saving) for each in found
        ),
        Column("error"): tuple(map(_error, found)),
        **_memory(found),
        Column("after", rank=1): tuple(map(size, after)),
        # each cost is printed below the table, too
        Column("cost", "text", rank=0 if any(times) else None): tuple(map(_cost, found)),
        **({Column("time"): texts} if any(times) else {}),
    }


def _memory(found: Suggestions) -> dict[Column, tuple[str, ...]]:
    """Return the column that names each row's memory; none if every row is of the peak."""
    if not any(each.memory for each in found):
        return {}
    return {Column("memory", "text"): tuple("queue" if each.memory else "peak" for each in found)}


def _cost(each: Suggestion) -> str:
    return "free" if each.is_free else _COSTS.get(each.kind, NOT_AVAILABLE)


def _time(each: Suggestion) -> str:
    if each.measured_time is None or each.measured_noise is None:
        return NOT_AVAILABLE
    return f"x{each.measured_time:.2f} ±{each.measured_noise:.2f}"


def _error(each: Suggestion) -> str:
    if each.off is None:
        return NOT_AVAILABLE
    return "exact" if each.predicted_saving == each.measured_saving else f"{100 * each.off:+.1f} %"


def _row(found: Suggestions, each: Suggestion) -> tuple[str | int | float | None, ...]:
    shown: dict[str, str | int | float | None] = {
        "settings": ", ".join(each.settings),
        "memory": each.memory or "peak",
        "before": found.peak if each.before is None else each.before,
        "time_ratio": each.measured_time,
    }
    cells = (shown[name] if name in shown else getattr(each, name) for name in _COLUMNS)
    return tuple(None if cell == "" else cell for cell in cells)
