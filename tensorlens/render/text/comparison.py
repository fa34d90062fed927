"""Comparisons of options as text."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.comparisons import Comparison
from tensorlens.render.comparing import (
    TITLES,
    WINNER_TITLES,
    conditions,
    failure_rows,
    headline,
    option_rows,
    remarks,
    shown_columns,
    winner_rows,
)
from tensorlens.render.shortening import told_apart
from tensorlens.render.source import width
from tensorlens.render.text.page import Page, aligned, ruled

_INDENT = 2
_LONGEST = 28
_GIVES_WAY = (3, 4, 8, 2, 6)
"""Columns in the order in which they go where the page is too narrow."""


def comparison_parts(found: Comparison, page: Page) -> list[str]:
    """Return the parts of the text: the options, the winners, what did not run, remarks."""
    title = page.wrapped("", page.shown(headline(found)))
    title += page.wrapped(" " * _INDENT, page.shown(conditions(found)))
    parts = ["\n".join(title)]
    options = option_rows(found)
    names = [page.shown(row[0]) for row in options]
    names = told_apart(names, [_LONGEST] * len(names), page.glyphs.ellipsis)
    rows = [[name, *map(page.shown, row[1:])] for name, row in zip(names, options, strict=True)]
    left_out: list[str] = []
    if rows:
        table, left_out = _fitting(rows, list(shown_columns(found)), page)
        parts.append(table)
    parts.append(_winners(found, page))
    failures = [
        line
        for name, why in failure_rows(found)
        for line in page.wrapped(" " * _INDENT, page.shown(f"{name}: {why}"))
    ]
    if failures:
        parts.append("\n".join(["Without figures:", *failures]))
    said = list(remarks(found))
    if left_out:
        said.append(f"no room for {', '.join(left_out)}: they are in a wider page, and in .json")
    lines = [line for text in said for line in page.wrapped(" " * _INDENT, page.shown(text))]
    parts.append("\n".join(lines))
    return parts


def _fitting(
    rows: Sequence[Sequence[str]], columns: list[int], page: Page
) -> tuple[str, list[str]]:
    """Return the table with as many columns as there is room for, and the names of the others."""
    left_out: list[str] = []
    while True:
        cells = [[TITLES[place] for place in columns]]
        cells += [[row[place] for place in columns] for row in rows]
        right = [place != 0 for place in columns]
        lines = aligned(cells, right, _INDENT)
        goes = next((place for place in _GIVES_WAY if place in columns), None)
        if max(map(width, lines)) <= page.width or goes is None:
            return "\n".join(ruled(lines, page, _INDENT)), left_out
        columns = [place for place in columns if place != goes]
        left_out.append(TITLES[goes])


def _winners(found: Comparison, page: Page) -> str:
    rows = [[page.shown(cell) for cell in row] for row in winner_rows(found)]
    lines = aligned([WINNER_TITLES, *rows], (False, False, False), _INDENT)
    if max(map(width, lines)) <= page.width:
        return "\n".join(ruled(lines, page, _INDENT))
    told: list[str] = []
    for question, names, why in rows:
        told += page.wrapped(" " * _INDENT, f"{question}: {names} ({why})")
    return "\n".join(told)
