"""Suggestions as text."""

from __future__ import annotations

from tensorlens.records.suggestions import Suggestions
from tensorlens.render.source import width
from tensorlens.render.suggesting import conditions, details, headline, remarks, rows, titles
from tensorlens.render.text.page import Page, aligned, ruled

_INDENT = 2
_LAST = 2
"""Columns, from the right, that go where the page is too narrow."""


def suggestion_parts(found: Suggestions, page: Page) -> list[str]:
    """Return the parts of the text: what saves how much, what to write, remarks."""
    title = page.wrapped("", page.shown(headline(found)))
    title += page.wrapped(" " * _INDENT, page.shown(conditions(found)))
    parts = ["\n".join(title)]
    if found.suggestions:
        parts += [_table(found, page), *_details(found, page)]
    said = [
        line for text in remarks(found) for line in page.wrapped(" " * _INDENT, page.shown(text))
    ]
    parts.append("\n".join(said))
    return parts


def _table(found: Suggestions, page: Page) -> str:
    cells = [
        ["", *titles(found)],
        *([str(n), *map(page.shown, row)] for n, row in enumerate(rows(found), 1)),
    ]
    for dropped in range(_LAST + 1):
        shown = [row[: len(row) - dropped] for row in cells]
        right = [place != 1 for place in range(len(shown[0]))]
        lines = aligned(shown, right, _INDENT)
        if max(map(width, lines)) <= page.width:
            break
    return "\n".join(ruled(lines, page, _INDENT))


def _details(found: Suggestions, page: Page) -> list[str]:
    parts = []
    for number, each in enumerate(found, 1):
        lines: list[str] = []
        for line in each.code.splitlines():
            start = f"{'' if lines else number:>{_INDENT + 1}}  "
            lines += page.wrapped(start, page.shown(line), _INDENT + 5)
        for text in details(each):
            lines += page.wrapped(" " * (_INDENT + 3), page.shown(text), _INDENT + 5)
        parts.append("\n".join(lines))
    return parts
