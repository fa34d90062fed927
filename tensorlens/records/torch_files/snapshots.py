"""Memory snapshots of ``torch.cuda.memory._snapshot()`` as logs; no code in a pickle is run."""

from __future__ import annotations

import copyreg
import heapq
import io
import pickle
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any, NoReturn

from tensorlens.errors import FileFormatError
from tensorlens.interpreter import paused_collector
from tensorlens.records.documents import reading
from tensorlens.records.logs.events import START, EventLog, Mark, Origin, Recorded
from tensorlens.records.torch_files.lifetimes import Lifetimes, lifetimes
from tensorlens.records.torch_files.sizes import Rules
from tensorlens.records.torch_files.trace import (
    StackReader,
    TraceEvent,
    device_name,
    segments,
    steps,
)

_ZIP = b"PK\x03\x04"


def unpickle(content: bytes) -> Any:
    """Return the plain data in a pickle: dicts, lists, texts, numbers, None, tuples.

    Raises:
        FileFormatError: it is damaged, or has anything else, such as calls; none was run.
    """
    if content.startswith(_ZIP):
        raise FileFormatError(
            "a zip archive, such as torch.save() and Keras write, not a memory snapshot: those are"
            " written by torch.cuda.memory._dump_snapshot()"
        )
    # cached objects of extension codes would be returned without find_class()
    copyreg.clear_extension_cache()
    try:
        return _Refusing(io.BytesIO(content)).load()
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(f"damaged pickle: {_printable(str(error))}") from None


class _Refusing(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise FileFormatError(
            f"tries to run code ({_printable(f'{module}.{name}')}): refused; nothing was run"
        )

    def persistent_load(self, pid: Any, /) -> NoReturn:
        raise FileFormatError("tries to load objects from elsewhere: refused; nothing was run")


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:120])


_NS_PER_US = 1000
_SOURCE = "torch memory snapshot"


def read(content: bytes) -> Recorded:
    """Return the log in a pickled memory snapshot, and its origin; no code in it is run.

    A block counts from its allocation to its ``free_requested``, with its full size: the request
    rounded up, and a remainder that was not split off. A trace only has the requests; the rest
    comes from replaying it in the segments.

    Raises:
        FileFormatError: it is no such pickle, is damaged, or tries to run code.
    """
    with paused_collector():
        return from_snapshot(unpickle(content))


def from_snapshot(data: Any, *, source: str | None = None) -> Recorded:
    """Return the log and the origin of a result of ``torch.cuda.memory._snapshot()``.

    Args:
        data: the result.
        source: name of the recorder, for the header.

    Raises:
        FileFormatError: the data is no such result, or damaged.
    """
    if not isinstance(data, dict) or not ("segments" in data or "device_traces" in data):
        raise FileFormatError("not a memory snapshot: it has neither segments nor device_traces")
    if "tensorlens" in data:
        raise FileFormatError(
            "a snapshot that tensorlens made for other viewers: open it at pytorch.org/memory_viz,"
            " and here the .tlens or .json"
        )
    with reading("snapshot"):
        return _recorded(data, source or _SOURCE)


def _recorded(data: Any, source: str) -> Recorded:
    log = EventLog()
    devices = _lifetimes(data, log)
    started = _started(devices)
    _fill(log, devices, started)
    log.marks = _annotations(data.get("external_annotations"), log, started)
    log.segments_known = bool(log.segments) or not any(each.resident for each in devices.values())
    origin = Origin(
        source=dict.fromkeys(log.devices, source),
        started=started / 1e6 if started > 0 else None,
        notes=tuple(_notes(devices, started)),
        run=None,
    )
    return log, origin


def _lifetimes(data: Any, log: EventLog) -> dict[str, Lifetimes]:
    """Return each device's lifetimes; the segments and stacks are put into the log."""
    traces = data.get("device_traces") or []
    rules = Rules.of(data.get("allocator_settings"))
    reader = StackReader(log.stacks)
    log.segments = segments(data.get("segments") or [], reader)
    names = [device_name(index) for index in range(len(traces))]
    names += [each.device for each in log.segments]
    made: dict[str, Lifetimes] = {}
    for index, device in enumerate(dict.fromkeys(names)):
        own = [each for each in log.segments if each.device == device]
        trace: list[TraceEvent] = []
        if index < len(traces):
            trace = steps(traces[index], rules, reader)
        if trace or own:
            made[device] = lifetimes(trace, own, rules)
    return made


def _started(devices: Mapping[str, Lifetimes]) -> int:
    """Return the recording's start in microseconds since 1970; -1 if no event has a time."""
    first = (row for each in devices.values() for row in each.rows[each.starts : each.starts + 1])
    return min((row.time for row in first if row.time >= 0), default=-1)


def _fill(log: EventLog, devices: Mapping[str, Lifetimes], started: int) -> None:
    for device, each in devices.items():
        for start in each.rows[: each.starts]:
            log.append(START, device, start.address, start.size, 0, start.stack)
    for time, device, event in heapq.merge(
        *(_timed(device, each, started) for device, each in devices.items()), key=itemgetter(0)
    ):
        log.append(event.kind, device, event.address, event.size, time, event.stack, event.context)


def _timed(device: str, blocks: Lifetimes, started: int) -> Iterator[tuple[int, str, TraceEvent]]:
    for index, row in enumerate(blocks.rows[blocks.starts :]):
        time = index if started < 0 else max(row.time - started, 0)
        yield time * _NS_PER_US, device, row


def _annotations(raw: Any, log: EventLog, started: int) -> list[Mark]:
    """Return the starts of ``record_function`` ranges in the snapshot as marks."""
    if not raw or started < 0:
        return []
    first = log.starts
    times = [
        (max(each["time_us"] - started, 0) * _NS_PER_US, each["name"])
        for each in raw
        if each["stage"] == "START"
    ]
    return [Mark(name, bisect_left(log.time, time, lo=first), time) for time, name in sorted(times)]


def _notes(devices: Mapping[str, Lifetimes], started: int) -> Iterator[str]:
    traced = any(len(each.rows) > each.starts for each in devices.values())
    if traced and started < 0:
        yield "the trace has no times: its events are put one microsecond apart"
    if devices and not traced:
        yield "a snapshot without a trace: what was there at one moment"
    for device, each in devices.items():
        if each.late:
            yield (
                f"{device}: {each.late} blocks were handed out after the trace ended;"
                " they stand at its end"
            )
        if each.missed:
            yield f"{device}: the trace lacks {each.missed} allocations or frees"
        if each.unsure:
            yield (
                f"{device}: what the allocator gave {each.unsure} blocks from before the trace is"
                " not known; they count as rounded"
            )
