"""The line and the tensors that have most of an instant, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorlens.recording.present.instants import LineRow, instants
from tensorlens.recording.recordings import Recording
from tensorlens.render.figures import size
from tensorlens.render.source import printable
from tensorlens.render.view import View
from tensorlens.tensors.present.tables import share


def largest_line(rows: Sequence[LineRow], whole: int) -> str:
    """Return ``train.py:12, 3.00 MiB (60.0 %): h = net(x)``; empty where no line is known."""
    first = next((row for row in rows if row.line is not None), None)
    if first is None:
        return ""
    source = f": {first.source}" if first.source else ""
    return f"{first.place}, {part(first.nbytes, whole)}{source}"


def largest_tensors(
    recording: Recording, device: str, row: int, whole: int, others: Collection[str] = ()
) -> str:
    """Return ``fc1.weight, 3.00 MiB (60.0 %), parameter, train.py:12``; empty where none is there.

    Args:
        recording: of the instant.
        device: whose.
        row: the event after which it is.
        whole: all of its bytes.
        others: names and operators of blocks that are no tensors.
    """
    if row < 0 or device not in recording.devices:
        return ""
    (shown,) = instants(recording, View(at=str(row), devices=(device,)))
    tensors = (each for each in shown.rows if not {each.name, each.first.op} & {*others})
    first = next(tensors, None)
    if first is None:
        return ""
    name = first.name if first.count == 1 else f"{first.name} x {first.count:,}"
    at = f", {first.place}" if first.first.charged else ""
    return f"{printable(name)}, {part(first.nbytes, whole)}, {first.first.role}{at}"


def part(nbytes: int, whole: int) -> str:
    """Return ``3.00 MiB (60.0 %)``."""
    return f"{size(nbytes)} ({share(nbytes, whole)})"
