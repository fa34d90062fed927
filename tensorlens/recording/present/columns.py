"""Recordings as rows: one per event, sizes in bytes and times in nanoseconds."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.recording.moments import Resident
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import ACTIONS, ALLOC, START, Context, EventLog

Value = str | int | None

_OF_THE_BLOCK = ("name", "role", "phase", "module", "dtype", "shape")
COLUMNS = (
    *("row", "action", "device", "address", "nbytes", "held", "time_ns", "pair"),
    *_OF_THE_BLOCK,
    *("thread", "op", "outer", "node", "filename", "lineno", "function"),
)
"""The columns in order. ``pair`` is the row of a block's free or allocation; ``held`` what the
allocator set aside where that is more than ``nbytes``; the line is the innermost of the user's own
code. Name, role and what follows are of events that hand out a block."""

TEXT = (
    *("action", "device", *_OF_THE_BLOCK, "op", "outer", "node"),
    *("filename", "function"),
)
"""The columns of :data:`COLUMNS` that are text."""

_NO_BLOCK = (None,) * len(_OF_THE_BLOCK)
_NO_LINE = (None, None, None)


def rows(recording: Recording) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every event."""
    log = recording.log
    made = [row for row, kind in enumerate(log.kind) if kind in (START, ALLOC)]
    blocks = iter(recording.blocks(made))
    lines: dict[int, tuple[Value, ...]] = {}
    contexts = [_context(context) for context in log.contexts]
    nothing = _context(None)
    columns = zip(log.kind, log.device, log.address, log.size, log.time, log.pair, strict=True)
    for row, (kind, device, address, nbytes, time, pair) in enumerate(columns):
        stack, context = log.stack[row], log.context[row]
        if stack not in lines:
            lines[stack] = _line(log, stack)
        yield (
            row,
            ACTIONS[kind],
            log.devices[device],
            address,
            nbytes,
            log.held.get(row),
            time,
            None if pair < 0 else pair,
            *(_block(next(blocks)) if kind in (START, ALLOC) else _NO_BLOCK),
            *(contexts[context] if context >= 0 else nothing),
            *lines[stack],
        )


def _block(block: Resident) -> tuple[Value, ...]:
    shape = None if block.shape is None else str(block.shape)
    return block.name, block.role, block.phase, block.module, block.dtype, shape


def _context(context: Context | None) -> tuple[Value, ...]:
    if context is None:
        return None, None, None, None
    return context.thread, context.op, context.outer, context.node


def _line(log: EventLog, stack: int) -> tuple[Value, ...]:
    frames = log.stacks.frames
    for node in log.stacks.nodes(stack):
        frame = frames[log.stacks.frame[node]]
        if frame.user:
            return frame.filename, frame.lineno, frame.function
    return _NO_LINE
