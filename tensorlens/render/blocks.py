"""The blocks that every report is made of: what is shown, not how it looks.

A presenter turns a record into blocks; :mod:`tensorlens.render.text` and
:mod:`tensorlens.render.html` turn blocks into a report. All texts may come from the program:
the writers make them printable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from tensorlens.records.snapshots import View
    from tensorlens.render.text.page import Page

MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Heading:
    """The first line of a report: its answer."""

    text: str
    provenance: str = MEASURED
    conditions: tuple[str, ...] = ()
    """Under which the answer holds."""


@dataclass(frozen=True, slots=True)
class Note:
    """A remark of one paragraph."""

    text: str


@dataclass(frozen=True, slots=True)
class Source:
    """One line of source code, or several that can be pasted."""

    text: str


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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    is_text: bool = False
    """Texts stand left, figures right."""
    rank: int | None = None
    """The order in which columns go where the page is too narrow; None stays."""
    most: int | None = None
    """How wide its texts may be; longer ones are shortened where they do not differ."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    heading: str = ""
    """Shown where there is room for headings: not in text."""
    remark: str = ""
    sentences: tuple[str, ...] = ()
    """What to show in its place on a page that is too narrow for it."""


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
class Point:
    """One point of a plane."""

    name: str
    title: str
    x: float
    """As a part of the width, 0 to 1."""
    y: float
    low: float
    """Where the interval of ``x`` begins, and where it ends."""
    high: float
    is_best: bool = False


@dataclass(frozen=True, slots=True)
class Plane:
    """Points of two figures each; pages draw them, text leaves them out."""

    heading: str
    across: str
    upward: str
    points: tuple[Point, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """One of several things that are told one after the other."""

    number: int
    count: int
    """Of how many."""
    title: str
    facts: tuple[Fact, ...] = ()
    code: str = ""
    """What to write; text shows it in place of the title."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks that belong together, below a title of their own if they have one."""

    blocks: tuple[Block, ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Custom:
    """What is drawn by functions of its own, where no block can show it."""

    text: Callable[[Page], list[str]] | None = None
    """Returns parts of the text, to be parted by empty lines."""
    html: Callable[[], str] | None = None
    """Returns the markup for a notebook's cell."""
    page: Callable[[], str] | None = None
    """Returns the markup for a page; None takes ``html``."""


Block: TypeAlias = Heading | Note | KeyValues | Table | Bars | Plane | Item | Section | Custom


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


class Presenter(Protocol):
    """Says what is shown of one kind of record."""

    def title(self, record: Any, /) -> str:
        """Return the title of a page."""

    def blocks(self, record: Any, view: View, /) -> Sequence[Block]:
        """Return what is shown of a record."""

    def rows(self, record: Any, /) -> Rows:
        """Return the record as a flat table."""
