"""Presents an estimate: the verdict, the figures, the parts of the peak, the terms added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from tensorlens.planning.estimate.explanation import explanation as explanation
from tensorlens.planning.estimate.figures import (
    Figure,
    peak_parts,
    requirement,
    sum_rows,
    tool_figures,
)
from tensorlens.planning.estimate.result import Estimate, Range, Verdict
from tensorlens.planning.estimate.verdict import (
    caution_text,
    conditions,
    culprits,
    fit_of,
    largest_batch_text,
    peak_block,
    peak_lines,
    peak_modules,
    peak_step,
    range_text,
    title,
    verdict,
)
from tensorlens.recording import export
from tensorlens.recording import present as recordings
from tensorlens.recording.present.data import by_line_data, by_module_data, line_data, moment_data
from tensorlens.recording.present.tables import line_table, module_rows, module_table
from tensorlens.records.tensors import SourceLine
from tensorlens.render.blocks import (
    HTML_MEDIA,
    Bar,
    Bars,
    Block,
    Column,
    Heading,
    Note,
    Only,
    Row,
    Rows,
    Section,
    Table,
    Tone,
    named,
)
from tensorlens.render.figures import counted, exact_size, share_table, size, size_cell
from tensorlens.render.pictures import role_colour
from tensorlens.render.shown import View

TITLE = "memory estimate"
_FEW = 5
"""Number of lines and modules that are named; the others are summed."""
_LINE = 32
"""Width of a line's place beside its source."""
_TONES: dict[Verdict, Tone] = {
    Verdict.FITS: "good",
    Verdict.TIGHT: "warning",
    Verdict.TOO_LARGE: "error",
}


def blocks(estimate: Estimate, view: View) -> Sequence[Block]:
    """Return the report, the verdict first; a page ends with the recording."""
    largest = largest_batch_text(estimate)
    shown: list[Block] = [Heading(largest)] if largest else []
    shown += [
        Section(tuple(_answer(estimate))),
        Only(HTML_MEDIA, lambda: _bars(estimate)),
        *_figures(estimate),
        _peak(estimate),
        # a page has the lines and modules of its recording
        Only(("text", "cell"), lambda: list(_lines_and_modules(estimate, view))),
    ]
    shown += [_steps(estimate)] if estimate.steps else []
    shown += [*_terms(estimate), *_formulas(estimate)]
    if estimate.warnings:
        warnings = tuple(Note(caution_text(each)) for each in estimate.warnings)
        shown.append(Section(warnings, "Warnings"))
    return [*shown, Only(("page",), lambda: _recording(estimate, view))]


def exported(estimate: Estimate, ending: str) -> str | bytes:
    """Return the recording in a format for recordings."""
    return export.exported(estimate.recording, ending)


def cards(estimates: Sequence[Estimate]) -> Sequence[Block]:
    """Return a table of one program on several cards."""
    is_search = any(each.largest for each in estimates)
    columns = (
        *(Column("Card", "name"), Column("Capacity")),
        *((Column("Largest batch"),) if is_search else ()),
        *(Column("Allocated", rank=0), Column("Reserved", rank=1), Column("Needed")),
        Column("", "text"),
    )
    rows = []
    for each in estimates:
        fit, largest = fit_of(each), each.largest
        name = (each.card.name if each.card else each.device).removeprefix("NVIDIA ")
        capacity, said = ("", "") if fit is None else (size(fit.capacity), fit.verdict)
        if largest and not largest.batch:
            said = f"a batch of {largest.next_batch:,} {said}"
        batch = (f"{largest.batch:,}",) if largest else ()
        peaks = (each.peak_allocated, each.peak_reserved, each.needed.point)
        rows.append((name, capacity, *batch, *map(size, peaks), said))
    what = "Largest batches" if is_search else "Estimates"
    program = f"{what} for {counted(len(estimates), 'card')}: {estimates[0].program}"
    return [Section((Table(columns, tuple(rows)),), program)]


def _answer(estimate: Estimate) -> Iterator[Block]:
    fit = fit_of(estimate)
    yield Heading(title(estimate))
    yield Note(verdict(estimate), "" if fit is None else _TONES[fit.verdict])
    yield named((*culprits(estimate), *conditions(estimate)))


def _bars(estimate: Estimate) -> Sequence[Block]:
    """Return bars of what is allocated, required and available."""
    fit = estimate.fits
    if fit.capacity is None:
        return []
    figures = {
        "peak allocated": estimate.peak_allocated,
        "required on card" if estimate.card else "required": estimate.needed.point,
        "the card" if estimate.capacity is None else "capacity": fit.capacity,
    }
    whole = max(figures.values())
    bars = (
        Bar(name, size(nbytes), nbytes / whole, is_best=nbytes == fit.needed.point)
        for name, nbytes in figures.items()
    )
    return [Bars("Required and available", tuple(bars))]


def _figures(estimate: Estimate) -> Iterator[Block]:
    """Yield the sum of the requirement, then the figures that tools will show."""
    sum_of_card, is_bounded = requirement(estimate), estimate.unsimulated is None
    if sum_of_card:
        yield _figure_table(sum_of_card, "On the card", is_bounded)
    remark = ""
    if sum_of_card and is_bounded and not estimate.taken.is_exact:
        low, high = size(estimate.taken.low), size(estimate.taken.high)
        remark = f"The allocator total may be {low} to {high}."
        if estimate.least_capacity.point < estimate.peak_reserved:
            remark += " It has unused cache, which goes back when the card is full."
    title = "As tools show it" if sum_of_card else ""
    table = _figure_table(tool_figures(estimate), title, is_bounded and not sum_of_card)
    yield replace(table, remark=remark)


def _figure_table(figures: Sequence[Figure], title: str, is_bounded: bool) -> Table:
    has_signs = any(each.sign for each in figures)
    has_bounds = is_bounded and not all(each.nbytes.is_exact for each in figures)
    bounds = (Column("At least"), Column("At most")) if has_bounds else ()
    columns = (
        *((Column("", "text"),) if has_signs else ()),
        *(Column(title, "text"), Column("Likeliest" if has_bounds else "Size")),
        *(Column("Bytes", rank=1), *bounds),
        # a narrow page drops the meaning
        *((Column("Meaning", "text", rank=0),) if len(figures) > 1 else ()),
    )
    rows = (
        (
            *((each.sign,) if has_signs else ()),
            *(each.label, size(each.nbytes.point), f"{each.nbytes.point:,}"),
            *(map(size, (each.nbytes.low, each.nbytes.high)) if has_bounds else ()),
            each.meaning,
        )
        for each in figures
    )
    return Table(
        columns,
        tuple(
            Row(row[: len(columns)], state="sum" if each.sign == "=" else "")
            for each, row in zip(figures, rows, strict=True)
        ),
    )


def _peak(estimate: Estimate) -> Section:
    whole = estimate.peak_allocated
    parts = peak_parts(estimate).values()
    named_parts = ((part.label, part.nbytes, role_colour(part.kind)) for part in parts)
    table = share_table("Component", named_parts, whole)
    return Section((table,), f"At the peak, {exact_size(whole)}")


def _lines_and_modules(estimate: Estimate, view: View) -> Iterator[Block]:
    few = None if view.top is None else _FEW
    whole = estimate.peak_allocated
    rows, hidden = peak_lines(estimate, few)
    if any(row.line is not None for row in rows):
        table = line_table(rows, hidden, whole)
        # a narrow page keeps their source
        columns = (
            replace(
                each,
                most=_LINE if each.kind == "line" else each.most,
                rank=None if each.kind == "code" else each.rank,
            )
            for each in table.columns
        )
        yield replace(table, columns=tuple(columns))
    # without lines to compare them with, modules are always shown
    found, hidden = module_rows({}, peak_modules(estimate), few)
    if found:
        yield module_table(found, hidden, whole)


def _steps(estimate: Estimate) -> Table:
    highest = max(step.peak_allocated for step in estimate.steps)
    columns = (
        *(Column("Step", "text"), Column("Peak"), Column("Peak reserved")),
        *(Column("At its end", rank=1), Column("Reserved then", rank=0)),
    )
    rows = []
    for step in estimate.steps:
        # a script makes its model in its first step
        if step.peak_allocated or step.peak_reserved:
            figures = map(size, (step.peak_reserved, step.allocated, step.reserved))
            rows.append(Row((step.name, size_cell(step.peak_allocated, highest), *figures)))
    return Table(columns, tuple(rows), "Step by step")


def _terms(estimate: Estimate) -> Iterator[Block]:
    columns = (Column("Term", "text"), Column("Size", "text"))
    titles = {False: "Other memory at the peak", True: f"Outside of {estimate.framework}'s memory"}
    for apart, heading in titles.items():
        rows = tuple(
            Row((term.name, range_text(term.nbytes)), (term.why,))
            for term in estimate.terms
            if term.apart == apart
        )
        if rows:
            yield Section((Table(columns, rows),), heading)


def _formulas(estimate: Estimate) -> Iterator[Block]:
    if not estimate.formulas:
        return
    columns = (Column("Rule", "text"), Column("Size"), Column("Off"))
    whole = max(estimate.peak_allocated, 1)
    rows = tuple(
        Row((each.name, size(each.nbytes), f"{each.nbytes / whole - 1:+.0%}"), (each.why,))
        for each in estimate.formulas
    )
    yield Section((Table(columns, rows),), "Rules of thumb, for comparison")


def _recording(estimate: Estimate, view: View) -> Sequence[Block]:
    recording, device = estimate.recording, estimate.device
    devices = view.devices or ((device,) if device in recording.devices else ())
    shown = replace(view, devices=devices)
    if view.at is None and devices and recording.peak(device).row != estimate.peak_row >= 0:
        # remainders may make another instant the highest
        shown = replace(shown, at=str(estimate.peak_row))
    used = estimate.peak.bytes
    rest = estimate.peak_allocated - used
    remainders = Note(
        f"peak allocated {exact_size(estimate.peak_allocated)} = {exact_size(used)} in blocks +"
        f" {exact_size(rest)} of remainders, which the allocator cannot split off; the pictures"
        " and tables below are of the blocks alone"
    )
    return [*([remainders] if rest else []), *recordings.blocks(recording, shown)]


Value = str | int | None

COLUMNS = (*("kind", "name", "low", "point", "high"), *("filename", "lineno", "function", "why"))
"""The columns in order. ``kind`` is ``figure``, ``peak allocated``, ``peak reserved``,
``allocated`` and ``reserved`` of a step, ``term``, ``term outside of torch`` (``tensorflow``), and
at the peak ``role``, ``line`` and ``module``, whose sizes add up to the figure ``allocated``."""

TEXT = ("kind", "name", "filename", "function", "why")

_FIGURES = ("allocated", "reserved", "least_capacity", "apart", "needed")
_OF_A_STEP = ("peak_allocated", "peak_reserved", "allocated", "reserved")


def rows(estimate: Estimate) -> Rows:
    """Return one row per figure."""
    return Rows(COLUMNS, _rows(estimate), TEXT)


def _rows(estimate: Estimate) -> Iterator[tuple[Value, ...]]:
    for name in _FIGURES:
        yield _row("figure", name, getattr(estimate, name))
    for step in estimate.steps:
        for figure in _OF_A_STEP:
            kind = figure.replace("_", " ")
            yield _row(kind, step.name, Range.exactly(getattr(step, figure)))
    for term in estimate.terms:
        kind = f"term outside of {estimate.framework}" if term.apart else "term"
        yield _row(kind, term.name, term.nbytes, why=term.why)
    for role, nbytes in estimate.by_role.items():
        yield _row("role", role, Range.exactly(nbytes))
    for line, nbytes in estimate.by_line.items():
        yield _row("line", None, Range.exactly(nbytes), line)
    for module, nbytes in estimate.by_module.items():
        yield _row("module", module, Range.exactly(nbytes))


def _row(
    kind: str,
    name: str | None,
    nbytes: Range,
    line: SourceLine | None = None,
    why: str | None = None,
) -> tuple[Value, ...]:
    where = (None,) * 3 if line is None else (line.filename, line.lineno, line.function)
    return kind, name, nbytes.low, nbytes.point, nbytes.high, *where, why


def summary(estimate: Estimate) -> dict[str, Any]:
    """Return dicts, lists, texts and integers; sizes in bytes; None is unknown.

    A range is a dict of ``low``, ``point`` (the likeliest) and ``high``. ``lower`` and ``upper``
    bound what the process takes from the card without its context. ``fits`` is of the capacity that
    was asked for, or else of the card's memory. ``by_role``, ``by_line``, ``by_module`` and
    ``parts`` add up to the likeliest peak, remainders included; ``sum`` goes on from the parts to
    what the card must have, each row with its ``sign``.
    """
    card, fit = estimate.card, fit_of(estimate)
    parts = peak_parts(estimate)
    return {
        "run": estimate.run and asdict(estimate.run),
        "program": estimate.program,
        "device": estimate.device,
        "card": None if card is None else asdict(card),
        "settings": estimate.settings,
        "versions": None if estimate.versions is None else dict(estimate.versions),
        "unsimulated": estimate.unsimulated,
        "batch": estimate.batch,
        "largest": None if estimate.largest is None else asdict(estimate.largest),
        "capacity": estimate.capacity,
        "fits": None if fit is None else {"capacity": fit.capacity, "verdict": fit.verdict},
        **{name: asdict(getattr(estimate, name)) for name in _FIGURES},
        "lower": estimate.lower,
        "upper": estimate.upper,
        "steps": [asdict(step) for step in estimate.steps],
        "terms": [asdict(term) for term in estimate.terms],
        "framework": estimate.framework,
        "formulas": [asdict(each) for each in estimate.formulas],
        "warnings": [
            {"text": caution.text, "line": line_data(caution.line)} for caution in estimate.warnings
        ],
        "peak": _peak_line(estimate),
        "by_role": dict(estimate.by_role),
        "by_line": by_line_data(estimate.by_line),
        "by_module": by_module_data(estimate.by_module),
        "parts": [
            {"kind": part.kind, "label": part.label, "nbytes": part.nbytes, "blocks": part.blocks}
            for part in parts.values()
        ],
        "sum": [asdict(row) for row in sum_rows(estimate, parts)],
    }


def _peak_line(estimate: Estimate) -> dict[str, Any]:
    block = peak_block(estimate)
    line = None if block is None else block.charged or block.born
    return {
        **moment_data(estimate.peak),
        "step": peak_step(estimate),
        "phase": None if block is None else block.phase,
        "line": line_data(line),
        "module": None if block is None else block.module,
        "op": None if block is None else block.op,
    }
