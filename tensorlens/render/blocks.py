"""The blocks that every report is made of: its content, not its looks.

A presenter turns a record into blocks; :mod:`tensorlens.render.text` and
:mod:`tensorlens.render.html` turn blocks into a report. All texts may come from the program:
the writers make them printable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tensorlens.render.pictures import Picture, Treemap

MEASURED = "measured"
NO_BREAK = "\xa0"
"""Space that holds two words of prose together."""

Emphasis: TypeAlias = Literal["", "peak", "growth", "raised"]
"""Mark before a cell, a remark or a text of a legend."""
Tone: TypeAlias = Literal["", "peak", "growth", "release", "soft", "good", "warning", "error"]
"""Colour of a bar or a remark, in media with colours."""
Medium: TypeAlias = Literal["text", "cell", "page"]
"""A terminal, a notebook's cell, a page of HTML."""
HTML_MEDIA: tuple[Medium, ...] = ("cell", "page")


@dataclass(frozen=True, slots=True)
class Heading:
    """The first line of a report: its answer."""

    text: str
    provenance: str = MEASURED
    process: str | None = None
    """Process it is about, if there are several."""
    conditions: tuple[str, ...] = ()
    """Conditions under which the answer holds."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of one paragraph."""

    text: str
    tone: Tone = ""
    label: str = ""
    """Prefix of the remark in text: ``note: ``."""
    mark: Emphasis = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Pieces of text that stay unbroken, such as the references of a path."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """A series of levels, drawn on a scale from its lowest to its highest."""

    name: str
    series: tuple[int, ...]
    text: str
    """The series in words."""


@dataclass(frozen=True, slots=True)
class Named:
    """A text about one of several things of the same kind, such as devices."""

    name: str
    text: str


Value: TypeAlias = str | Chain | Levels | Named


@dataclass(frozen=True, slots=True)
class Fact:
    """A label and its value."""

    label: str
    """Empty if it continues the fact before."""
    value: Value
    source: str = ""
    """The line of code it is about."""


def labelled(label: str, values: Iterable[Value]) -> tuple[Fact, ...]:
    """Return a fact for each value; the first has the label."""
    return tuple(Fact("" if place else label, each) for place, each in enumerate(values))


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Facts, one below the other."""

    facts: tuple[Fact, ...]


def named(texts: Iterable[tuple[str, str]]) -> KeyValues:
    """Return names, such as devices, each with a text about it."""
    return KeyValues(tuple(Fact("", Named(*each)) for each in texts))


Kind: TypeAlias = Literal["figure", "text", "name", "line", "prose", "code", "source"]
"""Figures are aligned right, all others left. Names and lines are shortened in the middle, code and
source (of a whole function, after a bar) at the end; prose is wrapped. A table has at most one
column of prose, code or source: its last."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    kind: Kind = "figure"
    rank: int | None = None
    """Order in which columns are left out of a narrow page; None is always shown."""
    beside: int = 0
    """Width that a source keeps before this column is left out; 0 for the usual one."""
    tip: str = ""
    """Explanation of the title, for a page that can show it."""
    most: int | None = None
    """Greatest width of its cells."""
    in_full: bool = False
    """Whether text that does not fit is repeated in full below its row."""
    only: tuple[Medium, ...] = ()
    """Media that show it; empty for all."""
    key: str = ""
    """Name in scripts."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than a text."""

    text: str
    count: int = 1
    """Number of things that the text names."""
    mark: Emphasis = ""
    is_top: bool = False
    """Whether it is emphasised without a mark."""
    bar: tuple[float, float] | None = None
    """Start and end of its bar, as fractions of its width; only pages draw it."""
    tone: Tone = "peak"
    """Colour of the bar."""
    swatch: str = ""
    """CSS colour of what it names."""
    depth: int = 0
    """Depth in a tree: 1 for a part of a cell above."""
    tip: str = ""
    """Explanation, for a page that can show it."""
    line: str = ""
    """Line whose bytes a script writes into it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is more than its cells."""

    cells: tuple[str | Cell, ...]
    details: tuple[str, ...] = ()
    """Lines below it."""
    state: Literal["", "idle", "failed", "sum"] = ""

    def cell(self, column: int) -> Cell:
        """Return a column's cell, made of its text if it is only a text."""
        cell = self.cells[column]
        return cell if isinstance(cell, Cell) else Cell(cell)


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that a page can unfold, and the text shown in their place."""

    text: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...] | Row | Fold, ...]
    heading: str = ""
    """Heading for pages; text has none."""
    rest: tuple[str, ...] = ()
    """Counts and sizes of rows that are left out."""
    remark: str = ""
    sentences: tuple[str, ...] = ()
    """Text in its place where the terminal is too narrow for it."""
    name: str = ""
    """Tables of one name show the same columns, whatever the width."""
    is_wide: bool = False
    """Whether text begins it at the left edge, to have more room."""
    is_live: bool = False
    """Whether a script sorts and fills it."""
    opening: int = 0
    """Rows that a page shows first, with a filter and a button for the others; 0 for all."""

    @property
    def all_rows(self) -> list[Row | Fold]:
        """All rows, plain tuples of cells as :class:`Row`."""
        return [row if isinstance(row, Row | Fold) else Row(row) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Key:
    """Meaning of a mark or a colour."""

    text: str
    mark: Emphasis = ""
    swatch: str = ""


@dataclass(frozen=True, slots=True)
class Legend:
    """Meanings of marks and colours; a text has no colours."""

    keys: tuple[Key, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of several."""

    name: str
    text: str
    share: float
    """Fraction of the longest, 0 to 1."""
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that compare what a table has in figures; pages draw them, text leaves them out."""

    heading: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One of several numbered things, such as suggestions."""

    number: int
    count: int
    """Number of items."""
    title: str
    facts: tuple[Fact, ...] = ()
    code: str = ""
    """Code to write; text shows it instead of the title."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks that belong together, below a title of their own if they have one."""

    blocks: tuple[Block, ...]
    title: str = ""
    name: str = ""
    """Subject of the title, such as a device."""
    asides: tuple[str, ...] = ()
    """Details of the title: a place, a count."""
    is_parted: bool = False
    """Whether text separates its blocks by empty lines."""
    can_fold: bool = False
    """Whether a page can fold it."""
    is_folded: bool = False
    is_beside: bool = False
    """Whether a wide page shows its blocks side by side."""
    script: str = ""
    """Identifier for scripts."""


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks for some media only, made when they are shown."""

    media: tuple[Medium, ...]
    blocks: Callable[[], Sequence[Block]]


@dataclass(frozen=True, slots=True)
class Markup:
    """Markup of a page: a picture, or data for a script. Not escaped."""

    html: str


Block: TypeAlias = (
    Heading
    | Paragraph
    | Note
    | KeyValues
    | Table
    | Legend
    | Bars
    | Treemap
    | Picture
    | Item
    | Section
    | Only
    | Markup
)


def of_medium(blocks: Sequence[Block], medium: Medium) -> list[Block]:
    """Return the blocks that a medium shows."""
    shown: list[Block] = []
    for block in blocks:
        if isinstance(block, Only):
            shown += of_medium(block.blocks(), medium) if medium in block.media else []
        elif isinstance(block, Section):
            shown.append(replace(block, blocks=tuple(of_medium(block.blocks, medium))))
        else:
            shown.append(block)
    return shown


def tables_of(blocks: Sequence[Block]) -> Iterator[Table]:
    """Yield the tables in blocks and their sections."""
    for block in blocks:
        if isinstance(block, Table):
            yield block
        elif isinstance(block, Section):
            yield from tables_of(block.blocks)


@dataclass(frozen=True, slots=True)
class Rows:
    """A record as a flat table, sizes in bytes."""

    columns: Sequence[str]
    rows: Iterable[tuple[Any, ...]]
    texts: Sequence[str] = ()
    """Names of the columns of text."""
    fractions: Sequence[str] = ()
    """Names of the columns of fractional numbers."""
    unsigned: Sequence[str] = ()
    """Names of the columns of addresses."""
