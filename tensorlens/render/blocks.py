"""The blocks that every report is made of: what is shown, not how it looks.

A presenter turns a record into blocks; :mod:`tensorlens.render.text` and
:mod:`tensorlens.render.html` turn blocks into a report. All texts may come from the program:
the writers make them printable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tensorlens.render.pictures import Picture

MEASURED = "measured"
NO_BREAK = "\xa0"
"""Space that holds two words of prose together."""

Mark: TypeAlias = Literal["", "peak", "growth", "raised"]
"""Emphasis of a row."""
Tone: TypeAlias = Literal["", "peak", "growth", "release", "soft", "good", "warning", "error"]
"""The colour of a bar or a remark, where there are colours."""
Medium: TypeAlias = Literal["text", "cell", "page"]
"""A terminal, a notebook's cell, a page of HTML."""
HTML_MEDIA: tuple[Medium, ...] = ("cell", "page")


@dataclass(frozen=True, slots=True)
class Heading:
    """The first line of a report: its answer."""

    text: str
    provenance: str = MEASURED
    process: str | None = None
    """Which of several processes it is about."""
    conditions: tuple[str, ...] = ()
    """Under which the answer holds."""


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
    mark: Mark = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Pieces of text that are not broken, such as the references of a path."""

    pieces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Levels:
    """A series of levels, drawn from its lowest to its highest."""

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
    """A label and what is told of it."""

    label: str
    """Empty where the fact goes on with the one before."""
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
"""Figures stand right, all others left. Names and places in files are shortened where they do not
differ, code is cut at its end, the source of a whole function, behind a bar, as well; prose goes on
below itself. Of the last three a table has one, as its last column."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    kind: Kind = "figure"
    rank: int | None = None
    """The order in which columns go where the page is too narrow; None stays."""
    beside: int = 0
    """How wide a source must still be for the column to stay; 0 for as wide as ever."""
    tip: str = ""
    """Explanation of the title, for a page that can show it."""
    most: int | None = None
    """How wide its cells may be at most."""
    in_full: bool = False
    """Whether what does not fit stands in full below its row."""
    only: tuple[Medium, ...] = ()
    """Where it is shown; empty for everywhere."""
    key: str = ""
    """Name in scripts."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that is more than a text."""

    text: str
    count: int = 1
    """How many things the text is the name of."""
    mark: Mark = ""
    is_top: bool = False
    """Whether it stands out without a mark."""
    bar: tuple[float, float] | None = None
    """Where its bar begins and ends, as parts of its width; pages draw it."""
    tone: Tone = "peak"
    """Of the bar."""
    swatch: str = ""
    """The colour of what it names, as CSS has it."""
    depth: int = 0
    """How many cells above it is a part of."""
    tip: str = ""
    """Explanation, for a page that can show it."""
    line: str = ""
    """The line whose bytes a script writes into it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row that is more than its cells."""

    cells: tuple[str | Cell, ...]
    details: tuple[str, ...] = ()
    """Lines below it."""
    state: Literal["", "idle", "failed", "sum"] = ""

    def cell(self, place: int) -> Cell:
        """Return the cell of a column, also where it is but a text."""
        found = self.cells[place]
        return found if isinstance(found, Cell) else Cell(found)


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows that a page can unfold, and what stands in their place."""

    text: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...] | Row | Fold, ...]
    heading: str = ""
    """Shown where there is room for headings: not in text."""
    rest: tuple[str, ...] = ()
    """How much of what is not shown."""
    remark: str = ""
    sentences: tuple[str, ...] = ()
    """Block in its place on a page that is too narrow for it."""
    name: str = ""
    """Tables of one name have the same columns, however wide the page is."""
    is_wide: bool = False
    """Whether text begins it at the left edge: it needs the room."""
    is_live: bool = False
    """Whether a script sorts and fills it."""
    opening: int = 0
    """How many rows a page begins with: it has a filter, and a button for the others. 0 is all."""

    @property
    def all_rows(self) -> list[Row | Fold]:
        """The rows, also those that are but their cells."""
        return [row if isinstance(row, Row | Fold) else Row(row) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Key:
    """Meaning of a mark or a colour."""

    text: str
    mark: Mark = ""
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
    """Of the longest, 0 to 1."""
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars that compare what a table has in figures; pages draw them, text leaves them out."""

    heading: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle of a treemap, as large as its bytes."""

    label: str
    text: str
    nbytes: int
    swatch: str
    """Its colour as CSS has it."""
    tip: str = ""
    boxes: tuple[Box, ...] = ()
    """Its parts; they add up to it."""


@dataclass(frozen=True, slots=True)
class Treemap:
    """Groups of boxes that fill a rectangle; pages draw it, text leaves it out."""

    label: str
    """Description in words."""
    groups: tuple[Box, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One of several things that are told one after the other."""

    number: int
    count: int
    """Of how many."""
    title: str
    facts: tuple[Fact, ...] = ()
    code: str = ""
    """Code to write; text shows it in place of the title."""
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
    """Text parts its blocks by empty lines."""
    can_fold: bool = False
    """A page can fold it away."""
    is_folded: bool = False
    is_beside: bool = False
    """A page that is wide enough stands its blocks side by side."""
    script: str = ""
    """Identifier for scripts."""


@dataclass(frozen=True, slots=True)
class Only:
    """Blocks for some media alone, made when they are shown."""

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
    """Return the blocks that a medium has."""
    found: list[Block] = []
    for block in blocks:
        if isinstance(block, Only):
            found += of_medium(block.blocks(), medium) if medium in block.media else []
        elif isinstance(block, Section):
            found.append(replace(block, blocks=tuple(of_medium(block.blocks, medium))))
        else:
            found.append(block)
    return found


def tables_of(blocks: Sequence[Block]) -> Iterator[Table]:
    """Give the tables in blocks and their sections."""
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
    """The columns that are text."""
    fractions: Sequence[str] = ()
    """The columns of numbers that are no whole ones."""
    unsigned: Sequence[str] = ()
    """The columns of addresses."""
