"""Facts as text: labels, levels and chains."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.render.blocks import (
    Chain,
    Fact,
    Levels,
    Named,
)
from tensorlens.render.figures import bars, size, thinned
from tensorlens.render.source import clipped, shortened, width
from tensorlens.render.text.page import GAP, Page, padded

INDENT = 2
_LABEL = 11
"""The least room of labels."""
_MARKS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_FEWEST_BARS = 8
_MOST_NUMBERS = 8


def fact_lines(facts: Sequence[Fact], indent: int, page: Page) -> list[str]:
    """Return facts as lines whose labels stand one below the other."""
    named = [fact.value.name for fact in facts if isinstance(fact.value, Levels | Named)]
    room = max((width(page.shown(name)) for name in named), default=0)
    labels = [page.shown(fact.label) for fact in facts]
    # what has names alone needs no room for labels
    column = max(_LABEL, *(width(label) + GAP for label in labels)) if any(labels) else 0
    lines: list[str] = []
    for fact, label in zip(facts, labels, strict=True):
        start = " " * indent + padded(label, column)
        if isinstance(fact.value, Levels | Named):
            start += f"{padded(page.shown(fact.value.name), room)}  "
        match fact.value:
            case str(text):
                lines += page.wrapped(start, page.shown(text), width(start))
            case Named():
                lines += page.wrapped(start, page.shown(fact.value.text), width(start))
            case Levels():
                text = _levels(fact.value, page.width - width(start), page)
                lines += page.wrapped(start, text, width(start))
            case Chain():
                lines += _chain(start, fact.value.pieces, page)
        lines += _source(fact.source, indent + column, page)
    return lines


def _levels(levels: Levels, room: int, page: Page) -> str:
    try:
        _MARKS.encode(page.encoding)
    except UnicodeEncodeError:
        return ", ".join(map(size, thinned(levels.series, _MOST_NUMBERS)))
    most = max(_FEWEST_BARS, min(_MOST_BARS, room - width(levels.text) - 2))
    return f"{bars(thinned(levels.series, most), _MARKS)}  {levels.text}"


def _chain(start: str, pieces: Sequence[str], page: Page) -> list[str]:
    """Return pieces in as few lines as they fit in, none of them broken."""
    lines = [start]
    for piece in pieces:
        room = page.width - width(start) - INDENT
        text = shortened(page.shown(piece), room, page.glyphs.ellipsis)
        used = width(lines[-1])
        if used == width(start):
            lines[-1] += text
        elif used + 1 + width(text) <= page.width:
            lines[-1] += f" {text}"
        else:
            lines.append(" " * (width(start) + 2) + text)
    return lines


def _source(source: str, indent: int, page: Page) -> list[str]:
    if not source:
        return []
    start = " " * (indent + INDENT)
    shown = page.shown(source.strip())
    return [start + clipped(shown, page.width - width(start), page.glyphs.ellipsis)]
