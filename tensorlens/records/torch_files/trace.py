"""The trace of one device in a snapshot, event by event, with its stacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tensorlens.records.logs.events import (
    ALLOC,
    FREE,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    Context,
    Segment,
    SegmentBlock,
)
from tensorlens.records.logs.stacks import Frame, Stacks
from tensorlens.records.torch_files.sizes import Rules

_INSTALLED = re.compile(
    r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+t?)[/\\]"
    r"|[/\\]Python3\d+[/\\]Lib[/\\]"
    # a checkout of torch itself
    r"|[/\\]torch[/\\](?:nn|optim|autograd|utils|cuda|distributed|fx|jit|amp|_\w+)[/\\]"
    r"|[/\\]torch[/\\](?:functional|_\w+)\.py$",
    re.IGNORECASE,
)
_OPERATOR = re.compile(r"\bat::_ops::(\w{1,200})::(?:call|redispatch)\b")
# the name includes the overload: add_Tensor, sum_dim_IntList, empty_memory_format
_OVERLOAD = re.compile(r"(?:_(?:dim|dtype|memory_format|start))?(?:_[A-Z]\w*)?$")
_NODE = re.compile(r"\btorch::autograd::(?:generated::)?(?:\w+::)?(\w+)::apply\(")
_ENGINE = "torch::autograd::Engine::evaluate_function("


MODULE_METADATA = "tensorlens module="
"""Start of the metadata that CudaRecorder attaches to events; a module's path follows."""


class StackReader:
    """Adds the stacks of a snapshot to a log's; each list of frames is read once.

    The snapshot must outlive the reader, which identifies its parts by ``id()``.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._frames: dict[int, Frame] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._native: dict[int, Context | None] = {}
        self._known: dict[int, tuple[int, Context | None]] = {}
        self._of_module: dict[tuple[str, Context | None], Context] = {}

    def stack(self, frames: Any) -> tuple[int, Context | None]:
        """Return the node of a list of frames, innermost first, and the context from C++ frames."""
        if not frames:
            return -1, None
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = self._read(frames)
        return known

    def context(self, metadata: Any, native: Context | None) -> Context | None:
        """Return the context from an event's C++ frames, with the module from its metadata."""
        if not isinstance(metadata, str) or not metadata.startswith(MODULE_METADATA):
            return native
        known = self._of_module.get((metadata, native))
        if known is None:
            module = metadata.removeprefix(MODULE_METADATA)
            known = replace(native or Context(), module=module)
            self._of_module[metadata, native] = known
        return known

    def _read(self, frames: list[Any]) -> tuple[int, Context | None]:
        stack = -1
        for raw in reversed(frames):
            step = stack, id(raw)
            if step not in self._nodes:
                self._nodes[step] = self._push(stack, raw)
            stack = self._nodes[step]
        if stack not in self._native:
            self._native[stack] = _native_context(self._stacks.of(stack))
        return stack, self._native[stack]

    def _push(self, stack: int, raw: Any) -> int:
        known = self._frames.get(id(raw))
        if known is None:
            lineno = raw["line"]
            if not 0 <= lineno < 2**31:
                # torch writes such numbers for some generated code
                lineno = 0
            known = self._frames[id(raw)] = frame_of(raw["filename"], lineno, raw["name"])
        return self._stacks.push(stack, known)


def frame_of(filename: str, lineno: int, function: str) -> Frame:
    """Return a frame; its path alone tells if it is the user's: its file may not be here."""
    frame = Frame(filename, lineno, function)
    own = not filename.startswith("<frozen") and not _INSTALLED.search(filename)
    return replace(frame, user=frame.is_python and own)


def _native_context(stack: Sequence[Frame]) -> Context | None:
    """Return the context that the C++ frames of a stack show."""
    native = [frame.function for frame in reversed(stack) if not frame.is_python]
    overloads = [match[1] for name in native if (match := _OPERATOR.search(name))]
    operators = [_OVERLOAD.sub("", name, count=1) or name for name in overloads]
    nodes = [match[1] for name in native if (match := _NODE.search(name))]
    backward = any(name.startswith(_ENGINE) for name in native)
    if not operators and not backward:
        return None
    inner = f"aten::{operators[-1]}" if operators else None
    outer = f"aten::{operators[0]}" if operators else None
    return Context(
        op=inner,
        outer=None if outer == inner else outer,
        node=nodes[-1] if backward and nodes else None,
        phase="backward" if backward else None,
    )


FREED = 6
"""A further kind of event: a block may be reused. It stopped counting at an earlier
:data:`~tensorlens.records.logs.events.FREE`; another stream may have used it until now."""

_KINDS = {
    "alloc": ALLOC,
    "free_requested": FREE,
    "free_completed": FREED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_map": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_unmap": SEGMENT_FREE,
    "oom": OOM,
}
_MAPPED = ("segment_map", "segment_unmap")


class TraceEvent(NamedTuple):
    """One event of a trace."""

    kind: int
    """A kind of :mod:`tensorlens.records.logs.events`, or :data:`FREED`."""
    address: int
    size: int
    """Bytes; for blocks as the allocator rounds them."""
    time: int
    """Microseconds since 1970; -1 if the trace has no times."""
    stack: int
    context: Context | None
    mapped: bool = False
    """A part of an expandable segment."""


def steps(trace: Any, rules: Rules, reader: StackReader) -> list[TraceEvent]:
    """Return the events of one device's trace."""
    events: list[TraceEvent] = []
    time = -1
    for event in trace:
        action = event["action"]
        kind = _KINDS.get(action)
        if kind is None:
            # "snapshot", "workspace_snapshot", and future actions of torch
            continue
        size = rules.rounded(event["size"]) if kind in (ALLOC, FREE, FREED) else event["size"]
        address = event.get("device_free", 0) if kind == OOM else event["addr"]
        # the trace is in order, even if the clock was set back
        time = max(event["time_us"], time) if "time_us" in event else time
        stack, native = reader.stack(event.get("frames"))
        context = reader.context(event.get("user_metadata"), native)
        events.append(TraceEvent(kind, address, size, time, stack, context, action in _MAPPED))
    return events


def segments(listed: Any, reader: StackReader) -> list[Segment]:
    """Return the segments of a snapshot, those of the private pools included."""
    return [_segment(raw, reader) for raw in listed if raw["address"] is not None]


def _segment(raw: Any, reader: StackReader) -> Segment:
    address, size = raw["address"], raw["total_size"]
    blocks: list[SegmentBlock] = []
    end = address
    for block in raw["blocks"]:
        blocks.append(_block(block, end, reader))
        end = blocks[-1].address + blocks[-1].size
    pool = raw.get("segment_pool_id") or ()
    kind = raw.get("segment_type", "large")
    return Segment(
        device=device_name(raw.get("device", 0)),
        address=address,
        size=size,
        stream=raw.get("stream", 0),
        kind=kind if kind in ("large", "small") else "large",
        expandable=raw.get("is_expandable") is True,
        pool=str(tuple(pool)) if any(pool) else None,
        blocks=tuple(blocks),
        stack=reader.stack(raw.get("frames"))[0],
    )


def _block(raw: Any, address: int, reader: StackReader) -> SegmentBlock:
    size, state = raw["size"], raw["state"]
    requested = raw.get("requested_size", size)
    return SegmentBlock(
        address=raw.get("address", address),
        size=size,
        requested=requested if state.startswith("active") else 0,
        state=state if state in ("active_allocated", "inactive") else "active_pending_free",
        stack=reader.stack(raw.get("frames"))[0],
    )


def device_name(index: int) -> str:
    """Return the name of a device by its number in a snapshot."""
    return f"cuda:{index}"
