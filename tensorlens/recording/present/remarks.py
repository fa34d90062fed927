"""Remarks on a recording as sentences, the same in text and HTML."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tensorlens.recording.analysis import Churn, Fragmentation, Moment
from tensorlens.recording.present.moment_layout import (
    BlockRow,
    LineRow,
    MomentLayout,
    has_times,
    moment_layouts,
)
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import ALLOC, FREE, OOM
from tensorlens.render.figures import counted, device_sources, duration, exact_size, share, size
from tensorlens.render.shown import View
from tensorlens.render.source import place, printable


def device_remarks(recording: Recording, layout: MomentLayout) -> tuple[str, ...]:
    """Return the remarks on a device: the allocator's own count, churn."""
    found = [_allocator(layout.moment)]
    fragmentation = recording.fragmentation(layout.device)
    if fragmentation is not None:
        found.append(_fragmentation(fragmentation))
    churn = recording.churn(layout.device)
    if churn.allocations:
        found.append(_churn(recording, churn))
    return tuple(found)


def failures(recording: Recording) -> Iterator[str]:
    """Yield a sentence on failed requests for each device."""
    log = recording.log
    if OOM not in log.kind:
        return
    failed = [row for row, kind in enumerate(log.kind) if kind == OOM]
    for number, device in enumerate(log.devices):
        if rows := [row for row in failed if log.device[row] == number]:
            last = log[rows[-1]]
            line = next((frame.line for frame in last.stack if frame.user), None)
            several = f"{len(rows):,} requests failed, the last"
            text = "a request failed" if len(rows) == 1 else several
            at = f" at {place(line)}" if line else ""
            when = f"after {duration(last.time_ns)}" if has_times(log) else f"event {last.row:,}"
            what = f"{size(last.nbytes)} on {printable(device)}{at}"
            yield f"out of memory: {text} for {what}, {when}"


def recorded_by(recording: Recording) -> tuple[tuple[str, str], ...]:
    """Return the recorders with their devices, equal ones together."""
    sources = recording.origin.source
    devices = dict.fromkeys([*sources, *recording.devices])
    return device_sources((device, sources.get(device, ""), "") for device in devices)


def extent(recording: Recording) -> str:
    """Return the duration, the number of allocations and frees, and the number dropped.

    Blocks from before the recording are no events. The duration is from the recording's beginning
    to its last event; if events were dropped, that of the kept ones comes first.
    """
    log, marks, dropped = recording.log, recording.marks, recording.origin.dropped
    allocations = log.kind.count(ALLOC)
    happened = allocations + log.kind.count(FREE)
    many = f"{happened:,} allocations and frees" if happened else "no allocations"
    one = "1 allocation" if allocations else "1 free"
    text = one if happened == 1 else many
    if happened and has_times(log):
        end = log.time[len(log) - 1]
        kept = end - log.time[log.starts]
        text += f" in the last {duration(kept)} of" if dropped else " in"
        text += f" {duration(end)}"
    if dropped:
        text += f"; {counted(dropped, 'earlier one')} dropped"
    if marks:
        text += f"; {counted(len(marks), 'mark')}"
    return text


def backward_title(recording: Recording) -> str:
    """Return the title of the table of the backward pass."""
    found = ["backward memory", "by the forward line that caused it"]
    return ", ".join(filter(None, [*found, _of_events_kept(recording)]))


def _of_events_kept(recording: Recording) -> str:
    """Return a remark on sums of events; empty if no event was dropped."""
    return "of the events that were kept" if recording.origin.dropped else ""


def _allocator(moment: Moment) -> str:
    if moment.reserved is not None:
        reserved = f"reserved {exact_size(moment.reserved)} at that instant"
    elif moment.device.rpartition("/")[2] == "cpu":
        reserved = "reserved: not recorded (on the CPU the process's resident set)"
    else:
        reserved = "reserved: not available (this allocator has no segments)"
    if moment.held is None:
        return reserved
    text = f"allocated {exact_size(moment.held)} as the allocator counts"
    if remainders := moment.held - moment.bytes:
        text += f", of it {size(remainders)} remainders that it did not split off"
    return f"{text}; {reserved}"


def _fragmentation(found: Fragmentation) -> str:
    return (
        f"at the end {size(found.reserved)} reserved in {counted(found.segments, 'segment')}:"
        f" {size(found.held)} handed out, {size(found.free)} free"
        f" (the largest piece {size(found.largest_free)}),"
        f" {size(found.inactive_split)} of it in segments partly in use"
    )


def _churn(recording: Recording, churn: Churn) -> str:
    what = " ".join(filter(None, ["churn", _of_events_kept(recording)]))
    peak = "their peak" if recording.origin.dropped else "the peak"
    text = (
        f"{what}: {size(churn.handed_out)} handed out in"
        f" {counted(churn.allocations, 'allocation')}, {churn.ratio:,.1f} times {peak}"
    )
    known = [(nbytes, line) for line, nbytes in churn.by_line.items() if line is not None]
    if not known:
        return text
    nbytes, line = max(known, key=lambda each: (each[0], str(each[1])))
    return f"{text}; most by {place(line)} ({size(nbytes)})"


def largest_line(rows: Sequence[LineRow], whole: int) -> str:
    """Return ``train.py:12, 3.00 MiB (60.0 %): h = net(x)``; empty without a known line."""
    return dict(largest_lines(rows, whole)).get("line", "")


def largest_lines(rows: Sequence[LineRow], whole: int) -> Iterator[tuple[str, str]]:
    """Yield the largest line, and the largest model line that it calls."""
    first = next((number for number, row in enumerate(rows) if row.line is not None), len(rows))
    for row in rows[first : first + 2]:
        if row is rows[first] or row.is_model:
            source = f": {row.source}" if row.source else ""
            name = "model line" if row.is_model else "line"
            yield name, f"{row.place.strip()}, {part(row.nbytes, whole)}{source}"


def largest_tensors(
    recording: Recording, device: str, row: int, whole: int, others: Collection[str] = ()
) -> str:
    """Return the largest tensors of an instant; empty if there are none.

    Args:
        recording: the recording.
        device: the device.
        row: row of the instant.
        whole: all bytes of the instant.
        others: names and operators of blocks that are no tensors.
    """
    if row < 0 or device not in recording.devices:
        return ""
    (shown,) = moment_layouts(recording, View(at=str(row), devices=(device,)))
    return largest_row(shown.rows, whole, others)


def largest_row(rows: Sequence[BlockRow], whole: int, others: Collection[str] = ()) -> str:
    """Return ``fc1.weight, 3.00 MiB (60.0 %), parameter, train.py:12``; empty without rows.

    Args:
        rows: largest first.
        whole: all bytes of the instant.
        others: names and operators of blocks that are no tensors.
    """
    tensors = (each for each in rows if not {each.name, each.first.op} & {*others})
    first = next(tensors, None)
    if first is None:
        return ""
    name = first.name if first.count == 1 else f"{first.name} x {first.count:,}"
    at = f", {first.place}" if first.first.charged else ""
    return f"{printable(name)}, {part(first.nbytes, whole)}, {first.first.role}{at}"


def culprits(layout: MomentLayout) -> Iterator[tuple[str, str]]:
    """Yield the largest line and tensors of an instant."""
    whole = layout.moment.bytes
    yield from largest_lines(layout.lines, whole)
    if tensor := largest_row(layout.rows, whole):
        yield "tensor", tensor


def part(nbytes: int, whole: int) -> str:
    """Return ``3.00 MiB (60.0 %)``."""
    return f"{size(nbytes)} ({share(nbytes, whole)})"
