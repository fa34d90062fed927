"""Blocks as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensorlens.render.blocks import (
    MEASURED,
    Block,
    Chain,
    Custom,
    Fact,
    Heading,
    Item,
    KeyValues,
    Levels,
    Named,
    Note,
    Section,
    Table,
)
from tensorlens.render.figures import size
from tensorlens.render.series import bars, thinned
from tensorlens.render.shortening import told_apart
from tensorlens.render.source import clipped, shortened, width
from tensorlens.render.text.page import GAP, Page, aligned, padded, table, wrapped

_LABEL = 11
"""The least room of labels."""
_INDENT = 2
_COMMENT = "# "
_ARROW = "-> "
"""What leads from one piece of a chain to the next."""
_KIND = re.compile(r"(?: \([a-z ]+\))?:?$")
"""What follows a name in a chain: `` (attribute)``."""
_MARKS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_FEWEST_BARS = 8
_MOST_NUMBERS = 8


def parts(blocks: Sequence[Block], page: Page) -> list[str]:
    """Return blocks as parts of a text, to be parted by empty lines."""
    found: list[str] = []
    page = replace(page, names=_names(blocks, page))
    for block in blocks:
        if isinstance(block, Custom):
            found += block.text(page) if block.text is not None else []
        else:
            found.append("\n".join(_lines(block, page)))
    return [part for part in found if part]


def _lines(block: Block, page: Page) -> list[str]:
    match block:
        case Heading():
            return _heading(block, page)
        case Note():
            return page.wrapped(" " * _INDENT, page.shown(block.text))
        case KeyValues():
            return _facts(block.facts, _INDENT, page)
        case Table():
            return _table(block, page)
        case Item():
            return _item(block, page)
        case Section():
            lines = [block.title] if block.title else []
            return lines + [line for each in block.blocks for line in _lines(each, page)]
        case Custom():
            return block.text(page) if block.text is not None else []
        case _:
            # a picture of what a table has in figures
            return []


def _heading(heading: Heading, page: Page) -> list[str]:
    is_measured = heading.provenance == MEASURED
    kind = "" if is_measured else f" ({page.shown(heading.provenance)})"
    lines = page.wrapped("", page.shown(heading.text) + kind)
    for each in heading.conditions:
        lines += page.wrapped(" " * _INDENT, page.shown(each))
    return lines


def _facts(facts: Sequence[Fact], indent: int, page: Page) -> list[str]:
    named = [fact.value.name for fact in facts if isinstance(fact.value, Levels | Named)]
    room = max((width(page.shown(name)) for name in named), default=0)
    labels = [page.shown(fact.label) for fact in facts]
    column = max(_LABEL, *(width(label) + GAP for label in labels), 0)
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


def _names(blocks: Sequence[Block], page: Page) -> dict[str, str]:
    """Return the names in all chains that do not fit, made to fit together: no two look alike."""
    names: dict[str, int] = {}
    indent = _INDENT
    for facts, begin in _facts_of(blocks):
        chains = [fact.value.pieces for fact in facts if isinstance(fact.value, Chain)]
        labels = [width(page.shown(fact.label)) + GAP for fact in facts]
        indent = max(indent, begin + max(_LABEL, *labels, 0) if chains else 0)
        for piece in (piece for each in chains for piece in each):
            lead, name, kind = _parted(page.shown(piece))
            names[name] = max(names.get(name, 0), width(lead) + width(kind))
    free = page.width - indent - _INDENT
    rooms = [max(free - beside, 1) for beside in names.values()]
    fitted = told_apart([*names], rooms, page.glyphs.ellipsis)
    return {name: text for name, text in zip(names, fitted, strict=True) if name != text}


def _facts_of(blocks: Sequence[Block]) -> Iterator[tuple[Sequence[Fact], int]]:
    """Give the facts of blocks, with the columns before their labels."""
    for block in blocks:
        if isinstance(block, Item):
            yield block.facts, len(str(block.count)) + GAP
        elif isinstance(block, KeyValues):
            yield block.facts, _INDENT
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
        text = shortened(text, room - _INDENT, page.glyphs.ellipsis)
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
    start = " " * (indent + _INDENT)
    shown = page.shown(source.strip())
    return [start + clipped(shown, page.width - width(start), page.glyphs.ellipsis)]


def _item(item: Item, page: Page) -> list[str]:
    start = f"{item.number:{len(str(item.count))}}  "
    indent = len(start)
    lines: list[str] = []
    for text in item.code.splitlines() or [item.title]:
        begin = " " * indent if lines else start
        is_comment = item.code and text.startswith(_COMMENT)
        if is_comment:
            lines += _comment(begin, text, page)
        else:
            lines += page.wrapped(begin, page.shown(text), indent + _INDENT)
    lines += _facts(item.facts, indent, page)
    for note in item.notes:
        lines += page.wrapped(" " * indent, page.shown(note), indent + _INDENT)
    return lines


def _comment(start: str, line: str, page: Page) -> list[str]:
    """Return a comment in code, each of whose lines is one."""
    room = page.width - width(start) - width(_COMMENT)
    found = wrapped("", page.shown(line.removeprefix(_COMMENT)), room, 0)
    indent = " " * width(start)
    return [f"{indent if place else start}{_COMMENT}{each}" for place, each in enumerate(found)]


def _table(block: Table, page: Page) -> list[str]:
    cells = [[page.shown(cell) for cell in row] for row in block.rows]
    for place, column in enumerate(block.columns):
        if column.most is not None:
            names = [row[place] for row in cells]
            short = told_apart(names, [column.most] * len(names), page.glyphs.ellipsis)
            for row, name in zip(cells, short, strict=True):
                row[place] = name
    ranks = {c.rank: place for place, c in enumerate(block.columns) if c.rank is not None}
    titles = [page.shown(column.title) for column in block.columns]
    right = [not column.is_text for column in block.columns]
    spare = [ranks[rank] for rank in sorted(ranks)]
    natural = aligned([titles, *cells], right, _INDENT)
    if block.sentences and max(map(width, natural)) > page.width:
        told = (page.wrapped(" " * _INDENT, page.shown(each)) for each in block.sentences)
        return [line for each in told for line in each]
    remark = page.wrapped(" " * _INDENT, page.shown(block.remark)) if block.remark else []
    return table([titles, *cells], right, page, _INDENT, spare) + remark
