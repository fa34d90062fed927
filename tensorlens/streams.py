"""Text on standard streams, which may be closed, full, missing, or a terminal.

On a terminal it has restrained colour: marks and headings stand out, rules stand back. See
https://no-color.org for ``NO_COLOR``.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from typing import TextIO

_BOLD, _DIM, _BLUE, _YELLOW, _RED = "1", "2", "1;34", "1;33", "1;31"
_PATTERNS = (
    (re.compile(r"\A[^\n]+"), _BOLD),
    (re.compile(r"(?m)^ *─{10,}$"), _DIM),
    (re.compile(r"▲ +[\d.]+ [KMGTP]?i?B"), _BLUE),
    (re.compile(r"● +[+-][\d.]+ [KMGTP]?i?B"), _YELLOW),
    (re.compile(r"(?m)(?:^|(?<= ))✗(?= )"), _RED),
    (re.compile(r"(?m)^ *… .*"), _DIM),
)


def write(text: str, stream: TextIO | None) -> None:
    """Write ``text``, and leave nothing of it in a buffer if that fails.

    Otherwise the interpreter would try again at exit, complain, and set the exit code to 120.
    Characters missing in the stream's encoding are escaped.

    Raises:
        OSError: it could not be written.
        ValueError: the stream is closed.
    """
    if stream is None:  # as under pythonw
        return
    # a signal that came in the middle of the program's own flush finds the buffer in use
    with suppress(RuntimeError):
        stream.flush()  # what the program wrote comes first; if that fails, so does ours
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    standard = any(stream is one for one in (sys.__stdout__, sys.__stderr__))
    if raw is None or not standard:
        stream.write(text)
        stream.flush()
        return
    errors = stream.errors if stream.errors not in (None, "strict") else "backslashreplace"
    rest = text.replace("\n", os.linesep).encode(stream.encoding, errors)
    while rest:
        written = raw.write(rest)
        if not written:
            raise BlockingIOError("it takes nothing more without waiting")
        rest = rest[written:]


def for_stream(text: str, stream: TextIO | None) -> str:
    """Return a report for a stream: coloured for a terminal."""
    return coloured(text) if can_colour(stream) else text


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is an open terminal."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False


def can_colour(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal whose user wants colour."""
    is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not is_plain and is_terminal(stream)


def coloured(text: str) -> str:
    """Return a report with the codes for colour; without them it is the same text."""
    for pattern, code in _PATTERNS:
        text = pattern.sub(f"\x1b[{code}m\\g<0>\x1b[0m", text)
    return text
