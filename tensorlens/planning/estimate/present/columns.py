"""Estimates as rows: one per figure, sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.estimate.result import Estimate, Range
from tensorlens.records.tensors import SourceLine

Value = str | int | None

COLUMNS = (
    *("kind", "name", "low", "point", "high"),
    *("filename", "lineno", "function", "why"),
)
"""The columns in order. ``kind`` is ``figure``, ``peak allocated``, ``peak reserved``,
``allocated`` and ``reserved`` of a step, ``term``, ``term outside of torch``, and at the peak
``role``, ``line`` and ``module``; of these the sizes add up to the figure ``allocated``."""

TEXT = ("kind", "name", "filename", "function", "why")

_FIGURES = ("allocated", "reserved", "least_capacity", "apart", "needed")
_OF_A_STEP = ("peak_allocated", "peak_reserved", "allocated", "reserved")


def rows(estimate: Estimate) -> Iterator[tuple[Value, ...]]:
    """Give the rows of the table."""
    for name in _FIGURES:
        yield _row("figure", name, getattr(estimate, name))
    for step in estimate.steps:
        for figure in _OF_A_STEP:
            kind = figure.replace("_", " ")
            yield _row(kind, step.name, Range.exactly(getattr(step, figure)))
    for term in estimate.terms:
        kind = "term outside of torch" if term.apart else "term"
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
