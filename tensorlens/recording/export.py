"""Recordings in the formats of other viewers: flame graphs of the peak, counters over time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorlens.recording import tlens
from tensorlens.recording.analysis import Moment
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.stacks import Frame
from tensorlens.render.source import printable
from tensorlens.units import format_bytes

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_CALLS = ("Module._wrapped_call_impl", "Module._call_impl", "Module._call_impl.<locals>.inner")
"""Functions of torch between the call of a module and its ``forward``."""
_OURS = re.compile(r"[/\\]tensorlens[/\\]lines[/\\](?:\w+[/\\])?\w+\.py$")
"""Files of tensorlens whose functions wrap profiled ones."""
_NO_STACK = Frame("", 0, "no stack known")


def speedscope(recording: Recording) -> str:
    """Return a file for https://www.speedscope.app: one profile for each device, in bytes."""
    frames: dict[Frame, int] = {}
    profiles = [
        _profile(device, recording.peak(device), recording, frames) for device in recording.devices
    ]
    content = {
        "$schema": _SCHEMA,
        "exporter": "tensorlens",
        "name": "bytes resident at the peak",
        "activeProfileIndex": 0,
        "shared": {"frames": [_written(frame) for frame in frames]},
        "profiles": profiles,
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def folded(recording: Recording) -> str:
    """Return folded stacks for flamegraph.pl and others, as lines of ``outer;inner bytes``.

    With several devices, the device is the outermost frame.
    """
    several = len(recording.devices) > 1
    sums: dict[str, int] = {}
    for device in recording.devices:
        for stack, nbytes in _stacks(recording, recording.peak(device)):
            names = [device] if several else []
            names += [_called(frame) for frame in stack]
            line = ";".join(re.sub(r"[;\s]+", " ", printable(name)) for name in names)
            sums[line] = sums.get(line, 0) + nbytes
    return "".join(f"{line} {nbytes}\n" for line, nbytes in sums.items())


def _profile(
    device: str, peak: Moment, recording: Recording, frames: dict[Frame, int]
) -> Mapping[str, Any]:
    samples: list[list[int]] = []
    weights: list[int] = []
    for stack, nbytes in _stacks(recording, peak):
        samples.append([frames.setdefault(frame, len(frames)) for frame in stack])
        weights.append(nbytes)
    return {
        "type": "sampled",
        "name": printable(f"{device} at its peak"),
        "unit": "bytes",
        "startValue": 0,
        "endValue": peak.bytes,
        "samples": samples,
        "weights": weights,
    }


def _stacks(recording: Recording, peak: Moment) -> Iterator[tuple[Sequence[Frame], int]]:
    """Yield the stacks of resident blocks, outermost frame first, with their bytes."""
    stacks = recording.log.stacks
    sums: dict[Sequence[Frame], int] = {}
    for stack, nbytes in peak.by_stack.items():
        if nbytes:
            frames = program_frames(stacks.of(stack)[::-1]) or (_NO_STACK,)
            sums[frames] = sums.get(frames, 0) + nbytes
    yield from sums.items()


def program_frames(stack: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return a stack, outermost frame first, from its first frame of user code on, if it has any.

    So the start of a program, test or thread is left out. Calls of ``nn.Module`` and our wrappers
    of profiled functions are left out too.
    """
    begin = next((depth for depth, frame in enumerate(stack) if frame.user), 0)
    return tuple(frame for frame in stack[begin:] if not _is_call(frame))


def _is_call(frame: Frame) -> bool:
    if frame.filename.startswith("<tensorlens "):
        return True
    is_known = frame.function in _CALLS or _OURS.search(frame.filename) is not None
    return is_known and not frame.user


def _called(frame: Frame) -> str:
    if frame == _NO_STACK:
        return frame.function
    name = re.split(r"[/\\]", frame.filename)[-1]
    return printable(f"{frame.function} ({name}:{frame.lineno})")


def _written(frame: Frame) -> Mapping[str, Any]:
    if frame == _NO_STACK:
        return {"name": frame.function}
    written: dict[str, Any] = {"name": _called(frame), "file": printable(frame.filename)}
    # the format counts lines from 1
    return {**written, "line": frame.lineno} if frame.lineno > 0 else written


POINTS = 20_000
"""Approximate maximum of points of a device's counter, with the peak."""
_NS_PER_US = 1000


def trace_events(recording: Recording) -> str:
    """Return a Chrome trace: for each device a counter of bytes by role, and of reserved bytes.

    Marks and the peaks are instant events. Times are microseconds since the recording began.
    """
    content = {
        "displayTimeUnit": "ms",
        "otherData": {"tensorlens": recording.origin.provenance},
        "traceEvents": list(_events(recording)),
    }
    return json.dumps(content, separators=(",", ":")) + "\n"


def _events(recording: Recording) -> Iterator[dict[str, Any]]:
    yield _event(
        "M", "process_name", args={"name": printable(recording.origin.process or "memory")}
    )
    for device in recording.devices:
        yield from _counters(recording, device)
    for mark in recording.marks:
        yield _event("i", mark.name, ts=mark.time_ns / _NS_PER_US, s="g")


def _counters(recording: Recording, device: str) -> Iterator[dict[str, Any]]:
    line = recording.timeline(device, POINTS)
    time = -1
    for point, total in enumerate(line.totals):
        # of two values at one time a viewer shows the later only, and it might be the peak
        time = max(line.times[point], time + 1)
        roles = {role: values[point] for role, values in line.by_role.items()}
        yield _event("C", f"{device} bytes", ts=time / _NS_PER_US, args=roles)
        if line.reserved is not None:
            reserved = {"bytes": line.reserved[point]}
            yield _event("C", f"{device} reserved", ts=time / _NS_PER_US, args=reserved)
        if point == line.peak:
            name = f"peak of {device}: {format_bytes(total)}"
            yield _event("i", name, ts=time / _NS_PER_US, s="g", args={"bytes": total})


def _event(kind: str, name: str, **others: Any) -> dict[str, Any]:
    return {"ph": kind, "name": printable(name), "cat": "memory", "pid": 1, "tid": 1, **others}


def exported(recording: Recording, ending: str) -> str | bytes:
    """Return the content of a file with an ending of ``tensorlens.render.RECORDING_ENDINGS``."""
    if ending in ("tlens", "tlens.gz"):
        return tlens.write(recording, compressed=ending == "tlens.gz")
    if ending == "pickle":
        from tensorlens.recording.memory_viz import memory_viz

        return memory_viz(recording)
    writers = {"folded": folded, "speedscope.json": speedscope}
    return writers.get(ending, trace_events)(recording)
