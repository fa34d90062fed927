"""The text of the source files whose lines have events."""

from __future__ import annotations

import linecache

from tensorlens.records.logs.events import EventLog

_MOST_CHARACTERS = 2_000_000
"""Size in characters above which a file is left out."""


def sources_of(log: EventLog) -> dict[str, list[str]]:
    """Return the lines of the user's files that have events.

    In files of libraries' models, lines without events are blank.
    """
    files = dict.fromkeys(frame.filename for frame in log.stacks.frames if frame.user)
    found = _of_models(log)
    for file in files:
        if file.startswith("<") and not file.startswith("<ipython"):
            continue
        lines = linecache.getlines(file)
        if lines and sum(map(len, lines)) < _MOST_CHARACTERS:
            found[file] = lines
    return found


def _of_models(log: EventLog) -> dict[str, list[str]]:
    numbers: dict[str, set[int]] = {}
    for frame in log.stacks.frames:
        if frame.model:
            numbers.setdefault(frame.filename, set()).add(frame.lineno)
    found = {}
    for file, wanted in numbers.items():
        lines = linecache.getlines(file)
        last = min(max(wanted), len(lines))
        found[file] = [lines[each - 1] if each in wanted else "" for each in range(1, last + 1)]
    return found
