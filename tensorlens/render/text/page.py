"""What every text report is made with: how wide it may be, its marks, and plain tables."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tensorlens.records.snapshots import View
from tensorlens.render.source import printable, width

GAP = 2
_HANGING = 4
_DEFAULT_WIDTH = 120


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The marks and rules of a table."""

    peak: str
    growth: str
    raised: str
    bar: str
    rule: str
    ellipsis: str


UNICODE = Glyphs(peak="▲", growth="●", raised="✗", bar="│", rule="─", ellipsis="…")
ASCII = Glyphs(peak="^", growth="*", raised="!", bar="|", rule="-", ellipsis="...")


@dataclass(frozen=True, slots=True)
class Page:
    """Where a report is written: its width in characters, its encoding, and what is wanted."""

    width: int
    encoding: str
    view: View

    @property
    def glyphs(self) -> Glyphs:
        """The marks that the encoding holds."""
        return UNICODE if _can_hold(self.encoding, UNICODE) else ASCII

    def shown(self, text: str) -> str:
        """Return text of a program as one line that a terminal shows and does not obey."""
        text = printable(text)
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def wrapped(self, start: str, text: str, hanging: int = _HANGING) -> list[str]:
        """Return ``start`` and ``text`` in lines of the page's width."""
        return wrapped(start, text, self.width, hanging)


def wrapped(start: str, text: str, limit: int, hanging: int = _HANGING) -> list[str]:
    """Return ``start`` and ``text`` in lines of at most ``limit`` characters, no word broken."""
    return textwrap.wrap(
        start + text,
        limit,
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,
        break_long_words=False,
    )


def padded(text: str, room: int, *, right: bool = False) -> str:
    """Return ``text`` filled up with blanks to ``room`` columns of a terminal."""
    blanks = " " * (room - width(text))
    return blanks + text if right else text + blanks


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool], indent: int = 0) -> list[str]:
    """Return rows of cells as lines in columns two blanks apart.

    Not tabulate's, which counts characters where a terminal counts columns: a name in Chinese
    would shift all that stands right of it.
    """
    rooms = [max(map(width, column)) for column in zip(*rows, strict=True)]
    return [
        (
            " " * indent
            + (" " * GAP).join(
                padded(cell, room, right=to_right)
                for cell, room, to_right in zip(row, rooms, right, strict=True)
            )
        ).rstrip()
        for row in rows
    ]


def ruled(lines: Sequence[str], page: Page, indent: int = 0) -> list[str]:
    """Return the lines of a table with a rule below the first, its titles."""
    longest = min(page.width, max(map(width, lines)))
    return [lines[0], " " * indent + page.glyphs.rule * (longest - indent), *lines[1:]]


def output_width() -> int:
    """Return ``$COLUMNS``, else the terminal's width where standard output is one, else 120."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    try:
        is_terminal = sys.stdout.isatty()
    except (AttributeError, ValueError):
        # no standard output, or it is closed already: reports are printed at exit too
        is_terminal = False
    return shutil.get_terminal_size().columns if is_terminal else _DEFAULT_WIDTH


def _can_hold(encoding: str, glyphs: Glyphs) -> bool:
    marks = (glyphs.peak, glyphs.growth, glyphs.raised, glyphs.bar, glyphs.rule, glyphs.ellipsis)
    try:
        "".join(marks).encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
