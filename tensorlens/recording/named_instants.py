"""Which event an instant is that a person names."""

from __future__ import annotations

import operator

from tensorlens.errors import UsageError
from tensorlens.records.events import EventLog


def row_at(log: EventLog, instant: int | str, *, last: bool = True) -> int:
    """Return the event after which it is the instant: an event's number, or the name of a mark.

    -1 is the start. Of marks with the same name it is the last, or else the first.

    Raises:
        UsageError: there is no such event or mark, or it is neither a number nor a name.
    """
    if isinstance(instant, str):
        return _of_mark(log, instant, last)
    try:
        if isinstance(instant, bool):
            raise TypeError
        row = operator.index(instant)
    except TypeError:
        raise UsageError(
            f"{instant!r} is no instant: give the number of an event or the name of a mark"
        ) from None
    if not -1 <= row < len(log):
        raise UsageError(f"there is no event {row}: the recording has {len(log)}, from 0 on")
    return row


def _of_mark(log: EventLog, name: str, last: bool) -> int:
    rows = [mark.row - 1 for mark in log.marks if mark.name == name]
    if not rows:
        names = ", ".join(dict.fromkeys(mark.name for mark in log.marks))
        known = f"it has {names}" if names else "it has none"
        if name in log.dropped_marks:
            raise UsageError(f"the events up to the mark {name!r} were dropped: {known}")
        raise UsageError(f"the recording has no mark {name!r}: {known}")
    return rows[-1] if last else rows[0]
