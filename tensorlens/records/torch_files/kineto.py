"""Traces of ``torch.profiler`` as logs: the allocations that ``profile_memory=True`` adds."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tensorlens.ranks import Rank
from tensorlens.records.documents import reading
from tensorlens.records.logs.events import (
    ALLOC,
    FREE,
    START,
    Context,
    EventLog,
    Mark,
    Origin,
    Recorded,
)
from tensorlens.records.logs.stacks import NO_MODELS, Frame, Stacks
from tensorlens.records.torch_files.trace import frame_of

_MEMORY = "[memory]"
# c10/core/DeviceType.h
_KINDS = {0: "cpu", 1: "cuda", 12: "xpu", 13: "mps"}
_RANGES = ("cpu_op", "python_function", "user_annotation")
_NODE_PREFIX = "autograd::engine::evaluate_function: "
_STEP_PREFIX = "Optimizer.step#"
_LINE = re.compile(r"(.+\.py)\((\d{1,9})\): (.+)")
_NOT_USER = {*sys.stdlib_module_names, *NO_MODELS}

_Event = Mapping[str, Any]


def has_memory(trace: _Event) -> bool:
    """Return whether a trace has allocations."""
    events = trace["traceEvents"]
    return isinstance(events, list) and any(map(_is_memory, events))


@reading("trace")
def from_trace(trace: _Event) -> Recorded:
    """Return the log of a trace's allocations, and its origin.

    Raises:
        FileFormatError: the trace is damaged.
    """
    events = [each for each in trace["traceEvents"] if _is_memory(each) or _is_range(each)]
    # of equal times, operators come before their allocations
    events.sort(key=lambda each: (each["ts"], -each.get("dur", 0)))
    memory = [each for each in events if _is_memory(each)]
    began = memory[0]["ts"]
    log = EventLog()
    _add_starts(log, memory)
    threads: dict[Any, _Thread] = {}
    for event in events:
        time = event["ts"]
        thread = threads.setdefault(event.get("tid"), _Thread(log.stacks))
        thread.close(time)
        since = max(round((time - began) * 1000), 0)
        if not _is_memory(event):
            thread.open(event)
            if event["cat"] == "user_annotation":
                log.marks.append(Mark(event["name"], len(log), since))
            continue
        device, address, size = _block(event)
        scope = thread.scope()
        kind, stack = (ALLOC, scope.stack) if size > 0 else (FREE, -1)
        log.append(kind, device, address, abs(size), since, stack, scope.context())
    job, base = trace.get("distributedInfo") or {}, trace.get("baseTimeNanoseconds")
    rank = str(Rank(job["rank"], job["world_size"])) if "rank" in job else None
    origin = Origin(
        process=rank,
        source=dict.fromkeys(log.devices, "torch.profiler"),
        started=None if base is None else base / 1e9 + began / 1e6,
        notes=("a trace of torch.profiler names no tensors, and of a function its first line",),
        run=None,
    )
    return log, origin


def _add_starts(log: EventLog, memory: Iterable[_Event]) -> None:
    """Add the memory from before the trace: blocks that it frees, and the rest of the total."""
    known: set[tuple[str, int]] = set()
    before: dict[str, int] = {}
    for event in memory:
        device, address, size = _block(event)
        if device not in before:
            before[device] = event["args"].get("Total Allocated", 0) - size
        if size < 0 and (device, address) not in known:
            log.append(START, device, address, -size, 0)
            before[device] += size
        known.add((device, address))
    for device, size in before.items():
        if size > 0:
            log.append(START, device, 0, size, 0)


def _block(event: _Event) -> tuple[str, int, int]:
    """Return device, address and bytes of an event, negative for a free."""
    args = event["args"]
    type_number = args["Device Type"]
    kind = _KINDS.get(type_number, f"device type {type_number}")
    index = "" if kind in ("cpu", "mps") else f":{args['Device Id']}"
    return f"{kind}{index}", args["Addr"], args["Bytes"]


class _Scope(NamedTuple):
    """Stack, operators and node of a thread, by its open ranges."""

    stack: int = -1
    op: str | None = None
    outer: str | None = None
    node: str | None = None
    is_step: bool = False

    def inside(self, event: _Event, stacks: Stacks) -> _Scope:
        """Return the scope of a range that was opened in this scope."""
        name = event["name"]
        if event["cat"] == "python_function":
            frame = _frame(name)
            return self if frame is None else self._replace(stack=stacks.push(self.stack, frame))
        if name.startswith(_NODE_PREFIX):
            return self._replace(node=name.removeprefix(_NODE_PREFIX))
        is_step = self.is_step or name.startswith(_STEP_PREFIX)
        if "::" not in name:
            return self._replace(is_step=is_step)
        return self._replace(op=name, outer=self.outer or name, is_step=is_step)

    def context(self) -> Context | None:
        if self.op is None and self.node is None and not self.is_step:
            return None
        return Context(
            op=self.op,
            outer=None if self.outer == self.op else self.outer,
            node=self.node,
            phase="optimizer" if self.is_step else "backward" if self.node is not None else None,
        )


class _Thread:
    """The open ranges of a thread; the scope of each is computed once, when it is needed."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._ranges: list[tuple[float, _Event]] = []
        self._scopes: list[_Scope] = []
        """Scopes of the outermost ranges, as far as computed."""

    def open(self, event: _Event) -> None:
        self._ranges.append((event["ts"] + event["dur"], event))

    def close(self, time: float) -> None:
        """Close the ranges that ended before a time."""
        while self._ranges and self._ranges[-1][0] < time:
            self._ranges.pop()
        del self._scopes[len(self._ranges) :]

    def scope(self) -> _Scope:
        for _, event in self._ranges[len(self._scopes) :]:
            outside = self._scopes[-1] if self._scopes else _Scope()
            self._scopes.append(outside.inside(event, self._stacks))
        return self._scopes[-1] if self._scopes else _Scope()


def _frame(name: str) -> Frame | None:
    """Return the Python frame of a range, by the range's name."""
    match = _LINE.fullmatch(name)
    if match is None:
        return None
    # paths are relative to sys.path, so an installed package looks like the user's
    frame = frame_of(match[1], int(match[2]), match[3])
    first = re.split(r"[/\\.]", match[1], maxsplit=1)[0]
    return replace(frame, user=frame.user and first not in _NOT_USER)


def _is_memory(event: Any) -> bool:
    return isinstance(event, dict) and event.get("name") == _MEMORY


def _is_range(event: Any) -> bool:
    return isinstance(event, dict) and event.get("cat") in _RANGES and "dur" in event
