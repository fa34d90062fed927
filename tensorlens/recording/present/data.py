"""A recording as data for other programs: one row per event, and a summary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from tensorlens.recording.analysis import Moment, Resident
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import ACTIONS, ALLOC, START, EventLog
from tensorlens.records.tensors import SourceLine

Value = str | int | None

_OF_THE_BLOCK = ("name", "role", "phase", "module", "dtype", "shape")
COLUMNS = (
    *("row", "action", "device", "address", "nbytes", "held", "time_ns", "pair"),
    *_OF_THE_BLOCK,
    *("thread", "op", "outer", "node", "filename", "lineno", "function"),
)
"""The columns in order. ``pair`` is the row of a block's free or allocation; ``held`` the bytes
that the allocator set aside if that is more than ``nbytes``; the line is the innermost of the
user's code. Columns from the name on are for allocations only."""

TEXT = (
    *("action", "device", *_OF_THE_BLOCK, "op", "outer", "node"),
    *("filename", "function"),
)
"""The columns of :data:`COLUMNS` that are text."""

_NO_BLOCK = (None,) * len(_OF_THE_BLOCK)
_NO_CONTEXT = (None, None, None, None)
_NO_LINE = (None, None, None)


def rows(recording: Recording) -> Iterator[tuple[Value, ...]]:
    """Yield the values of :data:`COLUMNS` for every event."""
    log = recording.log
    blocks = iter(recording.blocks(log.allocations()))
    line = cache(lambda stack: _line(log, stack))
    contexts = [(each.thread, each.op, each.outer, each.node) for each in log.contexts]
    columns = zip(log.kind, log.device, log.address, log.size, log.time, log.pair, strict=True)
    for row, (kind, device, address, nbytes, time, pair) in enumerate(columns):
        stack, context = log.stack[row], log.context[row]
        yield (
            row,
            ACTIONS[kind],
            log.devices[device],
            address,
            nbytes,
            log.held.get(row),
            time,
            None if pair < 0 else pair,
            *(_block_values(next(blocks)) if kind in (START, ALLOC) else _NO_BLOCK),
            *(contexts[context] if context >= 0 else _NO_CONTEXT),
            *line(stack),
        )


def _block_values(block: Resident) -> tuple[Value, ...]:
    shape = None if block.shape is None else str(block.shape)
    return block.name, block.role, block.phase, block.module, block.dtype, shape


def _line(log: EventLog, stack: int) -> tuple[Value, ...]:
    frames = log.stacks.frames
    for node in log.stacks.nodes(stack):
        frame = frames[log.stacks.frame[node]]
        if frame.user:
            return frame.filename, frame.lineno, frame.function
    return _NO_LINE


TENSORS = 1000
"""Blocks of a peak that are listed; ``rest`` sums the others."""


def summary(recording: Recording) -> dict[str, Any]:
    """Return the recording as plain data; sizes in bytes, times in nanoseconds, None if unknown.

    ``devices`` has for each device ``peak`` (``bytes``, ``row``, ``time_ns``, ``held``,
    ``reserved``, sums ``by_role``, ``by_phase``, ``by_line``, ``by_model_line``,
    ``by_module``, and ``tensors``, the largest first), ``backward``, ``backward_by_module``,
    ``churn``, ``fragmentation`` and ``timeline``.
    A line is a dict of ``filename``, ``lineno`` and ``function``.
    """
    origin = recording.origin
    return {
        "provenance": origin.provenance,
        "process": origin.process,
        "run": origin.run and asdict(origin.run),
        "started": origin.started,
        "notes": list(origin.notes),
        "events": len(recording.log),
        "dropped": origin.dropped,
        "marks": [asdict(mark) for mark in recording.marks],
        "devices": {device: _device(recording, device) for device in recording.devices},
        "growth": list(map(asdict, recording.growth())),
    }


def _device(recording: Recording, device: str) -> dict[str, Any]:
    fragmentation, churn = recording.fragmentation(device), recording.churn(device)
    timeline = recording.timeline(device)
    return {
        "source": recording.origin.source.get(device),
        "peak": moment_data(recording.peak(device)),
        "backward": [
            asdict(replace(cost, model_lines={})) | {"model_lines": by_line_data(cost.model_lines)}
            for cost in recording.backward(device)
        ],
        "backward_by_module": by_module_data(recording.backward_modules(device)),
        "churn": {
            "handed_out": churn.handed_out,
            "allocations": churn.allocations,
            "by_line": by_line_data(churn.by_line),
        },
        "fragmentation": None if fragmentation is None else asdict(fragmentation),
        "timeline": {
            name: value
            for name, value in asdict(timeline).items()
            if name not in ("device", "events")
        },
    }


def moment_data(moment: Moment) -> dict[str, Any]:
    """Return an instant as plain data, with the :data:`TENSORS` largest blocks."""
    listed = [_block(block) for _, block in zip(range(TENSORS), moment.tensors, strict=False)]
    return {
        "bytes": moment.bytes,
        "row": moment.row,
        "time_ns": moment.time_ns,
        "held": moment.held,
        "reserved": moment.reserved,
        "reached": moment.reached,
        "by_role": dict(moment.by_role),
        "by_phase": dict(moment.by_phase),
        "by_line": by_line_data(moment.by_line),
        "by_model_line": [
            {"line": line_data(line), "model_line": line_data(model), "nbytes": nbytes}
            for (line, model), nbytes in moment.by_model_line.items()
        ],
        "by_module": by_module_data(moment.by_module),
        "tensors": listed,
        "rest": {
            "count": len(moment.tensors) - len(listed),
            "nbytes": moment.bytes - sum(each["nbytes"] for each in listed),
        },
    }


def _block(block: Resident) -> dict[str, Any]:
    found = asdict(block)
    del found["stack"]
    shape = None if block.shape is None else list(block.shape)
    return {**found, "shape": shape}


def by_line_data(
    sizes: Mapping[SourceLine, int] | Mapping[SourceLine | None, int],
) -> list[dict[str, Any]]:
    """Return the bytes of lines as plain data, in their order."""
    return [{"line": line_data(line), "nbytes": nbytes} for line, nbytes in sizes.items()]


def by_module_data(sizes: Mapping[str | None, int]) -> list[dict[str, Any]]:
    """Return the bytes of modules as plain data, in their order."""
    return [{"module": module, "nbytes": nbytes} for module, nbytes in sizes.items()]


def line_data(line: SourceLine | None) -> dict[str, Any] | None:
    """Return a line as plain data."""
    return None if line is None else asdict(line)
