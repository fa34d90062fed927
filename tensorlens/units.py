"""Bytes to text and back, in IEC units (1 KiB = 1024 B)."""

from __future__ import annotations

import re

from tensorlens.errors import UsageError

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(r"\s*(\d{1,30}(?:\.\d+)?)\s*([KMGTP]?)(i?)B?\s*", re.IGNORECASE)


def format_bytes(count: int, *, signed: bool = False) -> str:
    """Return ``count`` bytes as text: ``"512 B"``, ``"18.31 MiB"``; ``signed`` adds ``+``.

    Below 1 KiB the count is exact; above, two decimals of the largest unit that keeps the
    number at 1 or more.
    """
    sign = "-" if count < 0 else "+" if signed and count > 0 else ""
    size = abs(count)
    if size < 1024:
        return f"{sign}{size} B"
    # 1023.999 MiB rounds up to the next unit instead of printing 1024.00 MiB
    power = 1
    while power < len(_UNITS) - 1 and round(size / 1024**power, 2) >= 1024:
        power += 1
    return f"{sign}{size / 1024**power:.2f} {_UNITS[power]}"


def rounded_up(nbytes: int, unit: int) -> int:
    """Return the least multiple of ``unit`` that is at least ``nbytes``."""
    return -(-nbytes // unit) * unit


def parse_bytes(text: str | int) -> int:
    """Return the bytes that ``"24 GiB"``, ``"512 B"`` or ``"1.5m"`` stand for.

    Units are powers of 1024 with or without the ``i``. A text must have one, unless it is 0. An
    integer is a number of bytes.

    Raises:
        UsageError: the text is not a size, or has no unit.
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UsageError(f"{text!r} is not a size: write for example '512 B', '64 MiB' or '24 GiB'")
    number, prefix, _ = match.groups()
    if not prefix and float(number) and not text.rstrip().upper().endswith("B"):
        raise UsageError(f"{text!r} has no unit: write '{number} GiB', or '{number} B' for bytes")
    return round(float(number) * float(1024 ** " KMGTP".index(prefix.upper() or " ")))
