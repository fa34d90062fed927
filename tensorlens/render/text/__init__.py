"""Reports as plain text for a terminal, a log or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorlens.render.blocks import (
    MEASURED,
    Block,
    Chain,
    Fact,
    Heading,
    Item,
    KeyValues,
    Legend,
    Levels,
    Named,
    Note,
    Paragraph,
    Section,
    Table,
    of_medium,
    tables_of,
)
from tensorlens.render.figures import bars, size, thinned
from tensorlens.render.shown import View, permitted, provenance
from tensorlens.render.source import clipped, shortened, width
from tensorlens.render.text import table as tables
from tensorlens.render.text.page import GAP, Page, output_width, padded, wrapped
from tensorlens.render.text.table import Layout

if TYPE_CHECKING:
    from tensorlens.render.shown import Shown

_COMMENT = "# "
_INDENT = 2
_LABEL = 11
"""Least width of labels."""
_MARKS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 60
_FEWEST_BARS = 8
_MOST_NUMBERS = 8


class _Writer:
    """Writes the blocks of one report."""

    def __init__(self, blocks: Sequence[Block], page: Page) -> None:
        self._page = page
        alike: dict[str, list[Table]] = {}
        for table in tables_of(blocks):
            if table.rows:
                alike.setdefault(table.name, []).append(table)
        alike.pop("", None)
        self._layouts = {name: tables.common_layout(each, page) for name, each in alike.items()}
        self._last = {name: each[-1] for name, each in alike.items()}
        """Name to its last table, below which the missing columns are listed."""

    def parts(self, blocks: Sequence[Block]) -> list[str]:
        """Return blocks as parts of a text, to be separated by empty lines."""
        parts: list[str] = []
        for block in blocks:
            if isinstance(block, Section) and block.is_parted:
                several = self.parts(block.blocks)
                title = self._title(block)
                parts += ["\n".join([*title, *several[:1]]), *several[1:]]
            else:
                parts.append("\n".join(self._lines(block)))
        return parts

    def _lines(self, block: Block) -> list[str]:
        page = self._page
        match block:
            case Heading():
                return _heading(block, page)
            case Paragraph():
                return page.wrapped("", page.shown(block.text), 0)
            case Note():
                mark = f"{page.glyphs.of(block.mark)} " if block.mark else ""
                label = f"{block.label}: " if block.label else ""
                return page.wrapped(f"{' ' * _INDENT}{mark}{label}", page.shown(block.text))
            case KeyValues():
                return _fact_lines(block.facts, _INDENT, page)
            case Table():
                return self._table(block)
            case Legend():
                return _legend(block, page)
            case Item():
                return _item(block, page)
            case Section():
                found = (self._lines(each) for each in block.blocks)
                return [*self._title(block), *(line for lines in found for line in lines)]
            case _:
                # a picture: a table has its figures
                return []

    def _title(self, section: Section) -> list[str]:
        page = self._page
        name = f"{page.shown(section.name)}  " if section.name else ""
        title = page.shown(section.title)
        below = []
        for aside in map(page.shown, section.asides):
            # an aside is not broken
            if width(f"{name}{title}  {aside}") <= page.width:
                title = f"{title}  {aside}"
            else:
                below.append(aside)
        return [*(page.wrapped(name, title) if name or title else ()), *below]

    def _table(self, block: Table) -> list[str]:
        page = self._page
        if not block.rows:
            return tables.table_footer(block, page)
        if block.sentences and tables.full_width(block, page) > page.width:
            told = (page.wrapped(" " * _INDENT, page.shown(each)) for each in block.sentences)
            return [line for each in told for line in each]
        layout: Layout = self._layouts.get(block.name) or tables.common_layout([block], page)
        lines = [*tables.lines(block, layout, page), *tables.table_footer(block, page)]
        is_last = not block.name or self._last[block.name] is block
        return lines + (tables.missing(layout, page) if is_last else [])


def _heading(heading: Heading, page: Page) -> list[str]:
    is_measured = heading.provenance == MEASURED
    kind = "" if is_measured else f" ({page.shown(heading.provenance)})"
    process = f", {page.shown(heading.process)}" if heading.process else ""
    lines = page.wrapped("", f"{page.shown(heading.text)}{kind}{process}")
    for each in heading.conditions:
        lines += page.wrapped(" " * _INDENT, page.shown(each))
    return lines


def _legend(legend: Legend, page: Page) -> list[str]:
    shown = (
        f"{page.glyphs.of(key.mark)} {page.shown(key.text)}" for key in legend.keys if key.mark
    )
    return page.wrapped("", "   ".join(shown))


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
    lines += _fact_lines(item.facts, indent, page)
    for note in item.notes:
        lines += page.wrapped(" " * indent, page.shown(note), indent + _INDENT)
    return lines


def _comment(start: str, line: str, page: Page) -> list[str]:
    """Return a comment in code, wrapped into several comments."""
    room = page.width - width(start) - width(_COMMENT)
    found = wrapped("", page.shown(line.removeprefix(_COMMENT)), room, 0)
    indent = " " * width(start)
    return [f"{indent if place else start}{_COMMENT}{each}" for place, each in enumerate(found)]


def _fact_lines(facts: Sequence[Fact], indent: int, page: Page) -> list[str]:
    """Return facts as lines, their values aligned."""
    named = [fact.value.name for fact in facts if isinstance(fact.value, Levels | Named)]
    room = max((width(page.shown(name)) for name in named), default=0)
    labels = [page.shown(fact.label) for fact in facts]
    # facts without labels need no room for them
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
    """Return pieces in as few lines as possible, none of them broken."""
    lines = [start]
    for piece in pieces:
        room = page.width - width(start) - _INDENT
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
    start = " " * (indent + _INDENT)
    shown = page.shown(source.strip())
    return [start + clipped(shown, page.width - width(start), page.glyphs.ellipsis)]


_NARROWEST = 40


class TextRenderer:
    """Tables of at most ``width`` characters, for every kind of record.

    Args:
        width: characters of a line at most. None takes the terminal's width if standard output
            is a terminal, else 120. Columns that do not fit are named below the table.
        encoding: encoding of the output; characters that it lacks are spelt in ASCII. None takes
            that of standard output.
        view: tensors of a snapshot, a difference or a recording to show, and how fully; None
            shows the largest of each device. ``top=None`` shows all lines and modules of an
            estimate, and all lines of all functions of a line report. Leak reports are always
            shown whole.
        tells_run: end with the record's run, as in files, which are read elsewhere.
    """

    def __init__(
        self,
        width: int | None = None,
        encoding: str | None = None,
        view: View | None = None,
        *,
        tells_run: bool = False,
    ) -> None:
        self.width = max(_NARROWEST, output_width() if width is None else width)
        self.encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
        self.view = view or View()
        self.tells_run = tells_run

    def render(self, record: Shown) -> str:
        """Return the record as text that ends in a newline."""
        record = permitted(record)
        blocks = [*record.presenter().blocks(record, self.view)]
        texts = provenance(record) if self.tells_run else ()
        if texts:
            blocks.append(Paragraph("; ".join(texts)))
        return self.render_blocks(blocks)

    def render_blocks(self, blocks: Sequence[Block]) -> str:
        """Return blocks as text that ends in a newline."""
        page = Page(self.width, self.encoding)
        shown = of_medium(blocks, "text")
        text = "\n\n".join(filter(None, _Writer(shown, page).parts(shown)))
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding) + "\n"
