"""The page of a text report: its width, its marks, and how sentences and names are made to fit."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache

from tensorlens.render.blocks import Emphasis
from tensorlens.render.source import leading, printable, shortened, width
from tensorlens.streams import is_terminal

GAP = 2
_HANGING = 4
_DEFAULT_WIDTH = 120
_WORD = re.compile(r" *(?:[^ ]*\d (?:B|[KMGTPE]iB|%|[num]?s)(?!\w)[^ ]*|[^ ]+)")
"""A word; a figure and its unit are one."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The marks and rules of a table."""

    peak: str
    growth: str
    raised: str
    bar: str
    rule: str
    ellipsis: str

    def of(self, mark: Emphasis) -> str:
        """Return the character of a mark."""
        return {"": "", "peak": self.peak, "growth": self.growth, "raised": self.raised}[mark]


UNICODE = Glyphs(peak="▲", growth="●", raised="✗", bar="│", rule="─", ellipsis="…")
ASCII = Glyphs(peak="^", growth="*", raised="!", bar="|", rule="-", ellipsis="...")


@dataclass(frozen=True, slots=True)
class Page:
    """Where a report is written: its width in characters, and its encoding."""

    width: int
    encoding: str

    @property
    def glyphs(self) -> Glyphs:
        """The marks of a table, in ASCII if the encoding lacks others."""
        return _glyphs(self.encoding)

    def shown(self, text: str) -> str:
        """Return a program's text as one line that the encoding holds, without control codes."""
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

    A word is broken only if it is longer than a line. ``textwrap`` counts characters, by which a
    name in Chinese would be twice as wide.
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
        # no line of blanks alone
        least = len(line) - len(line.lstrip(" ")) + 1
        while (end := max(len(leading(line, limit)), least)) < len(line):
            lines.append(line[:end])
            line, least = " " * hanging + line[end:], hanging + 1
    return [each.rstrip() for each in (*lines, line) if each.strip()]


def padded(text: str, room: int) -> str:
    """Return ``text`` padded with blanks to ``room`` columns of a terminal."""
    return text + " " * (room - width(text))


def output_width() -> int:
    """Return ``$COLUMNS``, else the width of the terminal, else 120 if there is none."""
    given = os.environ.get("COLUMNS", "")
    if given.isascii() and given.isdigit() and int(given) > 0:
        return int(given)
    # reports are printed at exit too, where it may be closed already
    return shutil.get_terminal_size().columns if is_terminal(sys.stdout) else _DEFAULT_WIDTH


_PART_OF_NAME = re.compile(
    r"(?:: | )?saved by \w+(?: \(\w+\))?"
    r"|(?:: |[./ ])?[^./\[: ]*:*[^./\[: ]*(?:\.\d+(?=[./:]|$)|\[[^\]]*\])*"
)
_PART_OF_PATH = re.compile(r"[/\\]*[^/\\]+|[/\\]+")
_PLACE = re.compile(r"^[/\\]|\\|\.(?:py|ipynb|so)\b|:\d+(?: in |$)")
"""Signs of a file name: a Keras layer's path has slashes too."""
_LINE_OF = re.compile(r".*:\d+ in ")
_LEAST_OF_FUNCTION = 8
"""Columns that are left for the function at least; otherwise the whole text is shortened."""


def distinct_names(texts: Sequence[str], rooms: Sequence[int], ellipsis: str) -> list[str]:
    """Return each text shortened to its room; different texts stay different.

    Of a name that does not fit, the parts that most other names share are left out first, the
    first part and numbers later, the last part never: ``model.encoder.layer.3.attention.query``
    becomes ``model…layer.3…query``. Parts are only cut if that is not enough.

    Args:
        texts: names or paths, each of one line.
        rooms: columns of a terminal for each.
        ellipsis: sign for what is left out.
    """
    least: dict[str, int] = {}
    for text, room in zip(texts, rooms, strict=True):
        # a text that occurs twice gets the smaller room
        least[text] = min(least.get(text, room), room)
    names = _ShortNames(least, ellipsis)
    return [names.shown[text] for text in texts]


class _ShortNames:
    def __init__(self, rooms: Mapping[str, int], ellipsis: str) -> None:
        self._ellipsis = ellipsis
        self._parts = {text: _parts(text) for text in rooms}
        self._counts = Counter(part for parts in self._parts.values() for part in {*parts})
        self.shown = {text: self._fitted(text, room) for text, room in rooms.items()}
        groups: dict[str, list[str]] = {}
        for text, short in self.shown.items():
            groups.setdefault(short, []).append(text)
        for alike in groups.values():
            self._make_distinct(alike, rooms)

    def _fitted(self, text: str, room: int) -> str:
        if width(text) <= room:
            return text
        parts = self._parts[text]
        order = sorted(
            range(len(parts) - 1),
            key=lambda index: (
                index == 0 or any(map(str.isdigit, parts[index])),
                -self._counts[parts[index]],
                index,
            ),
        )
        left_out: set[int] = set()
        for index in order:
            left_out.add(index)
            # a name of two parts is cut in the middle instead
            if width(self._joined(parts, left_out)) <= room and len(parts) > 2:
                break
        else:
            return _cut(text, room, self._ellipsis)
        # without a long part, others may fit again
        for index in reversed(order):
            fewer = left_out - {index}
            if width(self._joined(parts, fewer)) <= room:
                left_out = fewer
        return self._joined(parts, left_out)

    def _joined(self, parts: Sequence[str], left_out: set[int]) -> str:
        text = ""
        for index, part in enumerate(parts):
            if index not in left_out:
                after_gap = index and index - 1 in left_out
                text += part.removeprefix(".").removeprefix("/") if after_gap else part
            elif index - 1 not in left_out:
                text += self._ellipsis
        return text

    def _make_distinct(self, alike: Sequence[str], rooms: Mapping[str, int]) -> None:
        taken = {*self.shown.values()}
        for text in alike[1:]:
            others = [each for each in alike if each != text]
            for short in self._cuts(text, rooms[text], others):
                if short not in taken:
                    taken.add(short)
                    self.shown[text] = short
                    break

    def _cuts(self, text: str, room: int, others: Iterable[str]) -> Iterable[str]:
        """Yield other ways to shorten a text, last the parts where it differs from the others."""
        for start in range(room, -1, -1):
            yield shortened(text, room, self._ellipsis, start)
        dots = self._ellipsis
        least = max(room - 2 * width(dots), 1)
        for other in others:
            pairs = enumerate(zip(text, other, strict=False))
            first = next((index for index, (a, b) in pairs if a != b), min(len(text), len(other)))
            begin = max(first - least // 2, 0)
            yield f"{dots}{leading(text[begin:], least)}{dots}"


def _cut(text: str, room: int, ellipsis: str) -> str:
    """Return a text with its middle cut out; of a line, if there is room, that of its function."""
    line = _LINE_OF.match(text)
    if line is not None:
        rest = room - width(line.group())
        if rest >= _LEAST_OF_FUNCTION:
            return line.group() + shortened(text[line.end() :], rest, ellipsis)
    return shortened(text, room, ellipsis)


def _parts(text: str) -> list[str]:
    pattern = _PART_OF_PATH if _PLACE.search(text) else _PART_OF_NAME
    return [part for part in pattern.findall(text) if part]
