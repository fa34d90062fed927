"""One rank's record, reduced to the figures by which ranks are compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.leaks.report import LeakReport
from tensorlens.lines.report import LineReport
from tensorlens.ranks import Rank
from tensorlens.recording.analysis.roles import BEFORE
from tensorlens.recording.recordings import Recording
from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import model_place, place
from tensorlens.tensors.snapshot import Snapshot
from tensorlens.units import format_bytes

_SEVERAL = "several lines"
_FILES = (
    # ours, and Composer's rank{rank}.{batch}.memory_snapshot.pickle
    re.compile(r"(?:^|[._-])rank[._-]?(\d+)(?=[._-]|$)"),
    # torchtitan's {rank:06d}_step_{step}.pickle
    re.compile(r"^(\d{6})_step_\d+\."),
)


@dataclass(frozen=True, slots=True)
class RankReport:
    """Figures of one rank of a job; small enough to send to another process."""

    rank: int
    world_size: int | None
    file: str
    kind: str
    item: str
    device: str
    figures: Mapping[str, int] = field(default_factory=dict)
    """Name to bytes; ranks are compared by the first one."""
    items: Mapping[str, int] = field(default_factory=dict)
    """Parts of the first figure: tensor or line to bytes."""
    lines: Mapping[str, str] = field(default_factory=dict)
    """Tensor to the line that made it, if known."""
    notes: tuple[str, ...] = ()
    parameters: frozenset[str] = frozenset()
    """Names of its parameters in the record."""


def rank_of(record: Any, file: str) -> tuple[int, int | None] | None:
    """Return the rank and the number of ranks, from the record or its file's name."""
    origin = getattr(record, "origin", record)
    found = Rank.parse(getattr(origin, "process", None) or "")
    if found is not None:
        return found.number, found.size
    matches = (pattern.search(Path(file).name) for pattern in _FILES)
    return next(((int(match[1]), None) for match in matches if match is not None), None)


def rank_report(record: Any, file: str, rank: int, world_size: int | None) -> RankReport:
    """Reduce a rank's record to a report.

    Raises:
        UsageError: such records are not compared, or it has no bytes.
    """
    reduce = next((each for kind, each in _REDUCED if isinstance(record, kind)), None)
    if reduce is None:
        kind = getattr(record, "KIND", type(record).__name__)
        raise UsageError(f"{file}: ranks are not compared by a {kind}")
    try:
        reduced: RankReport = reduce(record)
    except _NoDevice:
        raise UsageError(f"{file}: it has no bytes of any device") from None
    notes = tuple(f"rank {rank} {note}" for note in reduced.notes)
    return replace(
        reduced, rank=rank, world_size=world_size, file=file, kind=record.KIND, notes=notes
    )


def _reduced(item: str, device: str, *found: Any, **others: Any) -> RankReport:
    """Build the report without the rank, its file and its kind."""
    return RankReport(0, None, "", "", item, device, *found, **others)


def _recording(recording: Recording) -> RankReport:
    peaks = {device: recording.peak(device) for device in recording.devices}
    device = _device({name: peak.bytes for name, peak in peaks.items()})
    peak = peaks[device]
    figures = {"peak": peak.bytes}
    if peak.reserved is not None:
        figures["reserved"] = peak.reserved
    items, lines = Counter[str](), dict[str, str]()
    for each in peak.tensors:
        items[each.name] += each.nbytes
        where = _line(each.charged, each.model_line)
        _add(lines, each.name, BEFORE if not where and each.age_ns is None else where)
    parameters = _parameters(peak.tensors)
    return _reduced("tensor", device, figures, items, lines, parameters=parameters)


def _snapshot(snapshot: Snapshot) -> RankReport:
    ledger = snapshot.ledger
    device = _device({name: each.allocated or each.named for name, each in ledger.items()})
    found = ledger[device]
    levels = {"allocated": found.allocated, "reserved": found.reserved, "other": found.other}
    items, lines = Counter[str](), dict[str, str]()
    for tensor in snapshot.tensors:
        if tensor.alias_of is None and tensor.device == device:
            items[tensor.name] += tensor.storage_nbytes
            _add(lines, tensor.name, _line(tensor.born, tensor.model_line))
    known = {name: value for name, value in levels.items() if value is not None}
    figures = known or {"named": found.named}
    notes, parameters = tuple(_strays(snapshot, device)), _parameters(snapshot.tensors)
    return _reduced("tensor", device, figures, items, lines, notes, parameters)


def _line(line: SourceLine | None, model: SourceLine | None) -> str:
    return model_place(model) if model else place(line) if line else ""


def _add(lines: dict[str, str], name: str, where: str) -> None:
    if where and lines.setdefault(name, where) != where:
        lines[name] = _SEVERAL


def _parameters(tensors: Iterable[Any]) -> frozenset[str]:
    return frozenset(each.name for each in tensors if each.role == "parameter")


def _strays(snapshot: Snapshot, own: str) -> Iterator[str]:
    """Yield a note for each other accelerator on which a rank holds memory without a tensor."""
    for name, ledger in snapshot.ledger.items():
        if name in (own, "cpu") or ledger.named or ledger.reserved is None:
            continue
        context = next((each.nbytes for each in ledger.parts if each.key == "context"), None)
        reserved = format_bytes(ledger.reserved)
        reason = ledger.missing.get("context", "the driver does not tell")
        size = f"n/a: {reason}" if context is None else format_bytes(context)
        yield (
            f"works on {own} and has no tensor on {name}, yet holds memory there:"
            f" {reserved} reserved, its context {size}"
        )


def _lines(report: LineReport) -> RankReport:
    """Reduce a line report to its peak, and the rise of each line above the level at its begin.

    Peaks of lines would repeat a difference at every later line.
    """
    peaks: dict[str, int] = {}
    items: dict[str, dict[str, int]] = {}
    for function in report.functions:
        for line in function.lines:
            name = f"{function.filename}:{line.lineno} in {function.qualname}"
            for each, memory in line.memory.items():
                if memory.peak is not None:
                    peaks[each] = max(peaks.get(each, 0), memory.peak)
                    # older files have no rise
                    took = memory.peak if memory.rise is None else memory.rise
                    items.setdefault(each, {})[name] = took
    device = _device(peaks)
    return _reduced("line", device, {"peak": peaks[device]}, items[device])


def _leaks(report: LeakReport) -> RankReport:
    items: dict[str, Counter[str]] = {each: Counter() for each in report.allocated}
    for leak in report.leaks:
        line = place(leak.born, function=True) if leak.born else "an unknown line"
        name = f"{line}{f', held by {leak.path}' if leak.path else ''}"
        items.setdefault(leak.device, Counter())[name] += round(leak.bytes_per_step)
    if not items:
        raise _NoDevice
    # the host may leak beside an accelerator
    device = max(items, key=lambda name: (items[name].total(), name != "cpu"))
    return _reduced("leak", device, {"bytes per step": items[device].total()}, items[device])


_REDUCED: Sequence[tuple[type, Any]] = (
    (Recording, _recording),
    (Snapshot, _snapshot),
    (LineReport, _lines),
    (LeakReport, _leaks),
)


def _device(held: Mapping[str, int]) -> str:
    """Return the device that a rank works on: the accelerator with most bytes, or the host."""
    used = {name: nbytes for name, nbytes in held.items() if nbytes > 0}
    if not used:
        raise _NoDevice
    return max(used, key=lambda name: (name != "cpu", used[name]))


class _NoDevice(Exception):
    pass
