"""Estimates as text: whether it fits, the figures, the peak in parts, the steps, what was added."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.capture.present.instants import line_rows
from tensorlens.capture.present.modules import module_table
from tensorlens.capture.present.text import more_rows, rows_by_module, share, with_source
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
from tensorlens.estimating.present.peak_parts import peak_parts
from tensorlens.records.estimates import Estimate, Term
from tensorlens.render.figures import counted, exact_size, size
from tensorlens.render.source import place, width
from tensorlens.render.text.page import Page, aligned, padded, table

_INDENT = 2
_UNDER = 6
_MAKER = "NVIDIA "
FEW = 5
"""So many lines and modules are named before the others are summed."""


def estimate_parts(estimate: Estimate, page: Page) -> list[str]:
    """Return the parts of the report, what is asked first first."""
    sections = [
        page.wrapped("", largest_batch(estimate.largest)),
        _header(estimate, page),
        _figures(estimate, page),
        _peak(estimate, page),
        _lines(estimate, page),
        _modules(estimate, page),
        _steps(estimate, page),
        *_terms(estimate, page),
        _formulas(estimate, page),
        _warnings(estimate, page),
    ]
    return ["\n".join(lines) for lines in sections]


def card_parts(estimates: Sequence[Estimate], page: Page) -> list[str]:
    """Return one table of the same program on several cards."""
    cells = [["Card", "Capacity", "Allocated", "Reserved", "Needed", ""]]
    for each in estimates:
        fit = judged(each)
        name = page.shown(each.card.name if each.card else each.device).removeprefix(_MAKER)
        capacity, said = ("", "") if fit is None else (size(fit.capacity), fit.verdict)
        peaks = (each.peak_allocated, each.peak_reserved, each.needed.point)
        cells.append([name, capacity, *map(size, peaks), said])
    program = page.shown(estimates[0].program)
    found = page.wrapped("", f"Estimates for {counted(len(estimates), 'card')}: {program}")
    right = (False, True, True, True, True, False)
    return ["\n".join([*found, *table(cells, right, page, _INDENT, spare=(2, 3))])]


def _header(estimate: Estimate, page: Page) -> list[str]:
    found = page.wrapped("", page.shown(title(estimate)))
    found += page.wrapped("  ", page.shown(verdict(estimate)))
    if estimate.approximate:
        found += page.wrapped("  approximate: ", page.shown(estimate.approximate))
    rows = conditions(estimate)
    room = max((width(label) for label, _ in rows), default=0)
    for label, text in rows:
        found += page.wrapped(f"  {padded(label, room)}  ", page.shown(text))
    return found


def _figures(estimate: Estimate, page: Page) -> list[str]:
    rows = figures(estimate)
    cells = [["", "Likeliest", "At least", "At most", "Bytes", ""]]
    for row in rows:
        low, high = ("", "") if row.nbytes.is_exact else (row.nbytes.low, row.nbytes.high)
        bounds = [size(each) if isinstance(each, int) else each for each in (low, high)]
        exact = f"{row.nbytes.point:,}"
        cells.append([row.shown, size(row.nbytes.point), *bounds, exact, row.meaning])
    right = [False, True, True, True, True, False]
    if all(row.nbytes.is_exact for row in rows):
        cells = [[*row[:2], *row[4:]] for row in cells]
        cells[0][1], right = "Size", [*right[:3], False]
    # the meaning is for those who have the room
    if len(rows) == 1 or max(map(width, aligned(cells, right, _INDENT))) > page.width:
        cells, right = [row[:-1] for row in cells], right[:-1]
    return table(cells, right, page, _INDENT, spare=(len(right) - 1,))


def _peak(estimate: Estimate, page: Page) -> list[str]:
    whole = estimate.peak_allocated
    found = page.wrapped(
        "", f"At the peak, {exact_size(whole)}, {page.shown(peak_place(estimate))}"
    )
    parts = peak_parts(estimate).values()
    if not parts:
        return found
    cells = [["Of it", "Size", "Share"]]
    cells += [
        [page.shown(each.label), size(each.nbytes), share(each.nbytes, whole)] for each in parts
    ]
    return found + table(cells, (False, True, True), page, _INDENT)


def _lines(estimate: Estimate, page: Page) -> list[str]:
    log, whole = estimate.recording.log, estimate.peak_allocated
    by_line = {line: nbytes for line, nbytes in estimate.by_line.items() if nbytes > 0}
    rows, hidden = line_rows(log, by_line, _few(page), estimate.peak.by_model_line)
    if not rows or all(row.line is None for row in rows):
        return []
    cells = [["Size", "Share"]]
    cells += [[size(row.nbytes), share(row.nbytes, whole)] for row in rows]
    places = [row.place for row in rows]
    found = with_source(cells, places, [row.source for row in rows], page)
    return found + (more_rows(hidden, "line", page) if hidden else [])


def _modules(estimate: Estimate, page: Page) -> list[str]:
    # without lines to weigh them against the modules are always told
    rows, hidden = module_table({}, estimate.by_module, _few(page))
    return rows_by_module(rows, hidden, estimate.peak_allocated, page) if rows else []


def _few(page: Page) -> int | None:
    return None if page.view.top is None else FEW


def _steps(estimate: Estimate, page: Page) -> list[str]:
    if not estimate.steps:
        return []
    cells = [["Step", "Peak", "Peak reserved", "At its end", "Reserved then"]]
    for step in estimate.steps:
        known = (step.peak_allocated, step.peak_reserved, step.allocated, step.reserved)
        cells.append([page.shown(step.name), *map(size, known)])
    return table(cells, (False, True, True, True, True), page, _INDENT, spare=(4, 3))


def _terms(estimate: Estimate, page: Page) -> list[list[str]]:
    inside = [term for term in estimate.terms if not term.apart]
    outside = [term for term in estimate.terms if term.apart]
    return [
        _term_list("Besides the program's tensors, at the peak", inside, page),
        _term_list(f"Outside of {estimate.framework}'s memory", outside, page),
    ]


def _term_list(heading: str, terms: Sequence[Term], page: Page) -> list[str]:
    found = [heading] if terms else []
    for term in terms:
        found += page.wrapped("  ", page.shown(f"{term.name}: {spread(term.nbytes)}"))
        found += page.wrapped(" " * _UNDER, page.shown(term.why), _UNDER)
    return found


def _formulas(estimate: Estimate, page: Page) -> list[str]:
    found = ["Rules of thumb, for comparison"] if estimate.formulas else []
    for each in estimate.formulas:
        off = each.nbytes / max(estimate.peak_allocated, 1) - 1
        found += page.wrapped("  ", page.shown(f"{each.name}: {size(each.nbytes)} ({off:+.0%})"))
        found += page.wrapped(" " * _UNDER, page.shown(each.why), _UNDER)
    return found


def _warnings(estimate: Estimate, page: Page) -> list[str]:
    found = ["Warnings"] if estimate.warnings else []
    for caution in estimate.warnings:
        where = "" if caution.line is None else f" ({place(caution.line, function=True)})"
        found += page.wrapped("  ", page.shown(caution.text + where))
    return found
