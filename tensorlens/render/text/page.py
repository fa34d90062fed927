"""The page of a text report: how wide it may be, its marks, and lines of words."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import astuple, dataclass
from functools import cache

from tensorlens.render.blocks import Mark
from tensorlens.render.source import leading, printable, width
from tensorlens.render.view import View
from tensorlens.streams import is_terminal

GAP = 2
_HANGING = 4
_DEFAULT_WIDTH = 120
_WORD = re.compile(r" *(?:[^ ]*\d (?:B|[KMGTPE]iB|%|[num]?s)(?!\w)[^ ]*|[^ ]+)")
"""A figure and its unit are one word."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The marks and rules of a table."""

    peak: str
    growth: str
    raised: str
    bar: str
    rule: str
    ellipsis: str

    def of(self, mark: Mark) -> str:
        """Return what stands for a mark."""
        return {"": "", "peak": self.peak, "growth": self.growth, "raised": self.raised}[mark]


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
        return _glyphs(self.encoding)

    def shown(self, text: str) -> str:
        """Return text of a program as one line that a terminal shows and does not obey."""
        text = printable(text)
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding)

    def wrapped(self, start: str, text: str, hanging: int = _HANGING) -> list[str]:
        """Return ``start`` and ``text`` in lines of the page's width."""
        return wrapped(start, text, self.width, hanging)


@cache
def _glyphs(encoding: str) -> Glyphs:
    try:
        "".join(astuple(UNICODE)).encode(encoding)
    except UnicodeEncodeError:
        return ASCII
    return UNICODE


def wrapped(start: str, text: str, limit: int, hanging: int = _HANGING) -> list[str]:
    """Return ``start`` and ``text`` in lines of at most ``limit`` columns of a terminal.

    A word is broken only where it takes more than a line by itself. Not textwrap's, which counts
    characters: a name in Chinese would take twice its room.
    """
    lines: list[str] = []
    line = ""
    for word in _WORD.findall(start + text):
        if width(line + word) <= limit:
            line += word
            continue
        if line.strip():
            lines.append(line)
            line = " " * hanging
        line += word.lstrip(" ") if lines else word
        # blanks alone make no line
        least = len(line) - len(line.lstrip(" ")) + 1
        while (end := max(len(leading(line, limit)), least)) < len(line):
            lines.append(line[:end])
            line, least = " " * hanging + line[end:], hanging + 1
    return [each.rstrip() for each in (*lines, line) if each.strip()]


def padded(text: str, room: int) -> str:
    """Return ``text`` filled up with blanks to ``room`` columns of a terminal."""
    return text + " " * (room - width(text))


def output_width() -> int:
    """Return ``$COLUMNS``, else the terminal's width where standard output is one, else 120."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    # reports are printed at exit too, where it may be closed already
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _DEFAULT_WIDTH
