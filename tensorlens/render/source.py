"""A program's text made safe to show: one line each, no control codes; and shortened."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from wcwidth import wcswidth, wcwidth

_TAB = 4
_FORMULA = ("=", "+", "-", "@")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SEPARATOR = r"[/\\]"
_LIBRARIES = ("site-packages", "dist-packages")
_SHORT = 3
"""Parts of a path that are shown if it is outside of the working directory."""
_JOINTS = ".[/\\"
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links
    r"|\x1b[@-Z\\-_]"
)


class ProgramLine(Protocol):
    """A line of a program, such as :class:`tensorlens.records.tensors.SourceLine`."""

    @property
    def filename(self) -> str:
        """The file."""

    @property
    def lineno(self) -> int:
        """Number of the line."""

    @property
    def function(self) -> str:
        """The function around it."""


def printable(text: str) -> str:
    """Return ``text`` as one line without escape sequences, control or direction characters.

    Tabs become spaces up to the next multiple of 4 columns, lone surrogates ``U+FFFD``.
    """
    text = text.rstrip()
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_shown, _ESCAPE.sub("", text).expandtabs(_TAB))).rstrip()


def spreadsheet_text(text: str) -> str:
    """Return ``text`` printable, after an apostrophe if a spreadsheet would take it for a formula.

    Numbers stay as they are, also negative ones.
    """
    text = printable(text)
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text


def _shown(char: str) -> str:
    if char.isprintable():
        return char
    category = unicodedata.category(char)
    if category == "Zs" or char in "\r\n\u2028\u2029":
        return " " * width(char) or " "
    return "\ufffd" if category == "Cs" else ""


def dedented(sources: Sequence[str]) -> list[str]:
    """Return the lines of a function made printable, less the indentation of its first line.

    It is not that of the least indented line: a multi-line string may start further left than the
    ``def``.
    """
    lines = [printable(source) for source in sources]
    first = next((line for line in lines if line), "")
    common = len(first) - len(first.lstrip(" "))
    return [line[min(common, len(line) - len(line.lstrip(" "))) :] for line in lines]


def width(text: str) -> int:
    """Return the columns that a printable text takes in a terminal."""
    return len(text) if text.isascii() else max(wcswidth(text), 0)


def _columns(char: str) -> int:
    return max(wcwidth(char), 0)


def clipped(text: str, room: int, ellipsis: str) -> str:
    """Return ``text`` in at most ``room`` columns, with ``ellipsis`` at the end if it was cut."""
    if width(text) <= room:
        return text
    room -= width(ellipsis)
    used = 0
    for index, char in enumerate(text):
        used += _columns(char)
        if used > room:
            return text[:index] + ellipsis
    return text + ellipsis


def short_path(filename: str) -> str:
    """Return ``filename`` relative to the working directory, if it is inside.

    For a library, the part after ``site-packages``; for other files, ``...`` and the last three
    parts; for a notebook's cell that ran in this process, ``In [3]``.
    """
    cell = cell_name(filename)
    if cell is not None:
        return cell
    try:
        return str(Path(filename).relative_to(Path.cwd()))
    except (OSError, ValueError):
        pass
    parts = re.split(_SEPARATOR, filename)
    if not Path(filename).is_absolute():
        return filename
    library = [at for at, part in enumerate(parts) if part in _LIBRARIES]
    if library:
        return "/".join(parts[library[-1] + 1 :])
    return filename if len(parts) <= _SHORT + 1 else "/".join(("...", *parts[-_SHORT:]))


def cell_name(filename: str) -> str | None:
    """Return ``In [3]`` for a file that IPython made of a cell, else None."""
    if "ipython" not in filename and "ipykernel" not in filename:
        return None
    try:
        shell = sys.modules["IPython"].get_ipython()
        number = shell.compile._filename_map[filename]
    except Exception:  # another IPython, or none
        return None
    return f"In [{number}]" if isinstance(number, int) else None


def place(line: ProgramLine, *, function: bool = False) -> str:
    """Return ``train.py:12``; with ``function``, ``train.py:12 in step``."""
    text = f"{short_path(line.filename)}:{line.lineno}"
    return printable(f"{text} in {line.function}" if function and line.function else text)


def model_place(line: ProgramLine) -> str:
    """Return ``modeling_bert.py:245``: a library's folder is left out."""
    return printable(short_line(line))


def short_line(line: ProgramLine) -> str:
    """Return the file's name and the line's number, not made printable: ``train.py:12``."""
    name = cell_name(line.filename) or re.split(_SEPARATOR, line.filename)[-1]
    return f"{name or line.filename}:{line.lineno}"


def shortened(text: str, room: int, ellipsis: str, start: int | None = None) -> str:
    """Return ``text`` in at most ``room`` columns, its middle cut out if it does not fit.

    Names and paths differ at the end, so the end gets all that its last component needs, and all
    but ``start`` columns if that is given.
    """
    if width(text) <= room:
        return text
    room = max(room - width(ellipsis), 1)
    tail = text[max(map(text.rfind, _JOINTS), default=0) :]
    least = room * 2 // 3 if start is None else room - min(start, room // 3)
    at_end = min(room, max(width(tail), least))
    return leading(text, room - at_end) + ellipsis + leading(text[::-1], at_end)[::-1]


def leading(text: str, room: int) -> str:
    """Return the beginning of ``text`` that fits into ``room`` columns."""
    for index, char in enumerate(text):
        room -= _columns(char)
        if room < 0:
            return text[:index]
    return text
