"""Restrained colour for a terminal: marks and headings stand out, rules stand back.

See https://no-color.org for ``NO_COLOR``.
"""

from __future__ import annotations

import os
import re
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


def for_stream(text: str, stream: TextIO | None) -> str:
    """Return a report as it is to be written to a stream: coloured where that is a terminal."""
    return coloured(text) if can_colour(stream) else text


def can_colour(stream: TextIO | None) -> bool:
    """Tell whether a stream is a terminal whose user wants colour."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):
        return False


def coloured(text: str) -> str:
    """Return a report with the codes for colour; without them it is the same text."""
    for pattern, code in _PATTERNS:
        text = pattern.sub(f"\x1b[{code}m\\g<0>\x1b[0m", text)
    return text
