"""Traces of ``torch.profiler`` as logs: the allocations that ``profile_memory=True`` adds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorlens.records.documents import text
from tensorlens.records.events import ALLOC, FREE, NO_MODELS, START, Context, EventLog, Frame, Mark
from tensorlens.records.origin import Origin, Recorded
from tensorlens.records.torch_snapshots.frames import frame_of
from tensorlens.records.torch_snapshots.trace import WRONG, damaged, number

_MEMORY = "[memory]"
# c10/core/DeviceType.h
_KINDS = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps"}
_RANGES = ("cpu_op", "python_function", "user_annotation")
_NODE = "autograd::engine::evaluate_function: "
_OPTIMIZER = "Optimizer.step#"
_LINE = re.compile(r"(.+\.py)\((\d{1,9})\): (.+)")
_NOT_USER = {*sys.stdlib_module_names, *NO_MODELS}

_Event = Mapping[str, Any]


def has_memory(trace: _Event) -> bool:
    """Tell whether a trace has allocations."""
    events = trace["traceEvents"]
    return isinstance(events, list) and any(map(_is_memory, events))


def from_trace(trace: _Event) -> Recorded:
    """Return the allocations in a trace, and where it is from.

    Raises:
        FileFormatError: it is damaged.
    """
    try:
        return _recorded(trace)
    except WRONG as error:
        raise damaged("the trace", error) from None


def _recorded(trace: _Event) -> Recorded:
    events = [each for each in trace["traceEvents"] if _is_memory(each) or _is_range(each)]
    # an operator begins before what it allocates at the same time
    events.sort(key=lambda each: (float(each["ts"]), -float(each.get("dur", 0))))
    memory = [each for each in events if _is_memory(each)]
    began = float(memory[0]["ts"])
    log = EventLog()
    _add_starts(log, memory)
    inside: dict[Any, list[_Event]] = {}
    for event in events:
        time = float(event["ts"])
        ranges = inside.setdefault(event.get("tid"), [])
        while ranges and float(ranges[-1]["ts"]) + float(ranges[-1]["dur"]) < time:
            ranges.pop()
        since = max(round((time - began) * 1000), 0)
        if not _is_memory(event):
            ranges.append(event)
            if event["cat"] == "user_annotation":
                log.marks.append(Mark(text(event["name"]), len(log), since))
            continue
        device, address, size = _block(event)
        kind, stack = (ALLOC, log.stacks.add(_frames(ranges))) if size > 0 else (FREE, -1)
        log.append(kind, device, address, abs(size), since, stack, _context(ranges))
    job, base = trace.get("distributedInfo") or {}, trace.get("baseTimeNanoseconds")
    rank = f"rank {number(job['rank'])} of {number(job['world_size'])}" if "rank" in job else None
    origin = Origin(
        process=rank,
        source=dict.fromkeys(log.devices, "torch.profiler"),
        started=None if base is None else number(base) / 1e9 + began / 1e6,
        notes=("a trace of torch.profiler names no tensors, and of a function its first line",),
        run=None,
    )
    return log, origin


def _add_starts(log: EventLog, memory: Iterable[_Event]) -> None:
    """Add what was there before the trace: what is freed in it, and the rest of the total."""
    known: set[tuple[str, int]] = set()
    before: dict[str, int] = {}
    for event in memory:
        device, address, size = _block(event)
        if device not in before:
            before[device] = number(event["args"].get("Total Allocated", 0)) - size
        if size < 0 and (device, address) not in known:
            log.append(START, device, address, -size, 0)
            before[device] += size
        known.add((device, address))
    for device, size in before.items():
        if size > 0:
            log.append(START, device, 0, size, 0)


def _block(event: _Event) -> tuple[str, int, int]:
    """Return device, address and bytes of an event, negative for a free."""
    found = event["args"]
    kind = _KINDS.get(found["Device Type"], f"device type {found['Device Type']}")
    index = "" if kind in ("cpu", "mps") else f":{number(found['Device Id'])}"
    return f"{kind}{index}", number(found["Addr"]), int(found["Bytes"])


def _frames(ranges: Sequence[_Event]) -> list[Frame]:
    """Return the Python frames that were running, innermost first."""
    frames = []
    for event in reversed(ranges):
        match = _LINE.fullmatch(text(event["name"])) if event["cat"] == "python_function" else None
        if match is not None:
            # paths lack what sys.path has, so that an installed package looks like one's own
            frame = frame_of(match[1], int(match[2]), match[3])
            first = re.split(r"[/\\.]", match[1], maxsplit=1)[0]
            frames.append(replace(frame, user=frame.user and first not in _NOT_USER))
    return frames


def _context(ranges: Sequence[_Event]) -> Context | None:
    names = [text(each["name"]) for each in ranges if each["cat"] != "python_function"]
    operators = [name for name in names if "::" in name and not name.startswith(_NODE)]
    nodes = [name.removeprefix(_NODE) for name in names if name.startswith(_NODE)]
    if not operators and not nodes:
        return None
    inner, outer = (operators[-1], operators[0]) if operators else (None, None)
    is_step = any(name.startswith(_OPTIMIZER) for name in names)
    return Context(
        op=inner,
        outer=None if outer == inner else outer,
        node=nodes[-1] if nodes else None,
        phase="optimizer" if is_step else "backward" if nodes else None,
    )


def _is_memory(event: Any) -> bool:
    return isinstance(event, dict) and event.get("name") == _MEMORY


def _is_range(event: Any) -> bool:
    return isinstance(event, dict) and event.get("cat") in _RANGES and "dur" in event
