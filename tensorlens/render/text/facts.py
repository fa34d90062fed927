"""Facts as text: labels, levels, and chains whose names are made to fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tensorlens.render.blocks import (
    Block,
    Chain,
    Fact,
    Item,
    KeyValues,
    Levels,
    Named,
    Section,
)
from tensorlens.render.figures import bars, size, thinned
from tensorlens.render.shortening import distinct_names
from tensorlens.render.source import clipped, shortened, width
from tensorlens.render.text.page import GAP, Page, padded

INDENT = 2
_LABEL = 11
"""The least room of labels."""
_ARROW = "-> "
"""Arrow from one piece of a chain to the next."""
_KIND = re.compile(r"(?: \([a-z ]+\))?:?$")
"""Suffix of a name in a chain: `` (attribute)``."""
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


def fitted_names(blocks: Sequence[Block], page: Page) -> dict[str, str]:
    """Return the names in all chains that do not fit, made to fit together: no two look alike."""
    names: dict[str, int] = {}
    indent = INDENT
    for facts, begin in _facts_of(blocks):
        chains = [fact.value.pieces for fact in facts if isinstance(fact.value, Chain)]
        labels = [width(page.shown(fact.label)) + GAP for fact in facts]
        indent = max(indent, begin + max(_LABEL, *labels, 0) if chains else 0)
        for piece in (piece for each in chains for piece in each):
            lead, name, kind = _parted(page.shown(piece))
            names[name] = max(names.get(name, 0), width(lead) + width(kind))
    free = page.width - indent - INDENT
    rooms = [max(free - beside, 1) for beside in names.values()]
    fitted = distinct_names([*names], rooms, page.glyphs.ellipsis)
    return {name: text for name, text in zip(names, fitted, strict=True) if name != text}


def _facts_of(blocks: Sequence[Block]) -> Iterator[tuple[Sequence[Fact], int]]:
    """Give the facts of blocks, with the columns before their labels."""
    for block in blocks:
        if isinstance(block, Item):
            yield block.facts, len(str(block.count)) + GAP
        elif isinstance(block, KeyValues):
            yield block.facts, INDENT
        elif isinstance(block, Section):
            yield from _facts_of(block.blocks)


def _parted(piece: str) -> tuple[str, str, str]:
    """Return what leads to the name in a piece of a chain, the name, and what kind it is of."""
    lead = _ARROW if piece.startswith(_ARROW) else ""
    name = _KIND.sub("", piece[len(lead) :])
    return lead, name, piece[len(lead) + len(name) :]


def _chain(start: str, pieces: Sequence[str], page: Page) -> list[str]:
    """Return pieces in as few lines as they fit in, none of them broken."""
    lines = [start]
    for piece in pieces:
        room = page.width - width(start)
        lead, name, kind = _parted(page.shown(piece))
        text = f"{lead}{page.names.get(name, name)}{kind}"
        text = shortened(text, room - INDENT, page.glyphs.ellipsis)
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
