"""What torch.compile made its code from."""

from __future__ import annotations

import linecache
import re
import sys
from bisect import bisect_right

_FRAME = re.compile(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)')


def compiled_from(filename: str, lineno: int) -> list[tuple[str, int, str]]:
    """Return the lines that a line of Inductor's code was made from, outermost first.

    Each is file name, line and function. Inductor keeps them for torch's own memory profiler
    (``PyCodeCache.linemaps``, torch 2.0 to 2.13); of backward's code they are of forward.
    """
    cache = getattr(sys.modules.get("torch._inductor.codecache"), "PyCodeCache", None)
    lines_and_stacks = getattr(cache, "linemaps", {}).get(filename)
    try:
        lines, stacks = lines_and_stacks or ((), ())
        place = bisect_right(lines, lineno) - 1
        found = _FRAME.findall(stacks[place]) if place >= 0 and stacks[place] else []
    except (TypeError, ValueError, IndexError):
        # another release keeps them otherwise: the line of the call stays
        return []
    frames = []
    for file, line, function, text in found:
        now = _line_now(file, int(line), text.strip())
        if now is None:
            return []
        frames.append((file, now, function))
    return frames


def _line_now(file: str, line: int, text: str) -> int | None:
    """Return where a line stands; None if it is gone.

    Compiled code is cached from run to run: the file may have changed since.
    """
    if not text or linecache.getline(file, line).strip() == text:
        return line
    same = [
        number for number, each in enumerate(linecache.getlines(file), 1) if each.strip() == text
    ]
    return min(same, key=lambda number: abs(number - line), default=None)
