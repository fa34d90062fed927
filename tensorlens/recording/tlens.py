"""Recordings as `.tlens` files: JSON lines, plain or gzip, in one versioned schema.

The first line is ``{"schema": "tensorlens.recording", "version": 1, ...}`` and the header. Each
line after it is an object with one key: a table (``frames``, ``modules``, ``stacks``,
``contexts``, ``labels``, ``segments``, ``marks``, ``dropped_marks``, ``sources``, ``held``,
``dropped_peak``) or a part of one, or ``events``, some rows of the log in columns. The last line is
``{"end": {"events": n, "crc32": n}}``, a checksum of the lines before it; without it the file was
cut short. Readers ignore unknown keys.

Columns are named as in :class:`~tensorlens.records.logs.events.EventLog`. A column is a list of
whole numbers, or one number if all rows have the same (addresses are always a list). ``time`` is
the time since the row before. In place of ``pair`` there is ``back``: for each free the number of
rows back to its allocation, 0 if that is not in the log.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, fields
from functools import partial
from io import BufferedReader, BytesIO
from itertools import accumulate, compress, count, repeat
from operator import eq, sub
from typing import Any, TypeVar, cast
from zlib import crc32

from tensorlens.errors import FileFormatError
from tensorlens.recording.recordings import SCHEMA, VERSION, Recording
from tensorlens.records.documents import Document, check_schema, reading, restored
from tensorlens.records.logs.events import FREE, Context, EventLog, Label, Mark, Origin, Segment
from tensorlens.records.logs.stacks import Frame
from tensorlens.records.row_sequence import InternTable

ROWS = 50_000
"""Rows in a line of events."""

_OF_STACKS = ("parent", "frame", "module")
_PLAIN = ("kind", "device", "address", "size", "stack", "context", "label")


def _frame_data(frame: Frame) -> list[Any]:
    return [frame.filename, frame.lineno, frame.function, int(frame.user)]


def _frame(data: Any) -> Frame:
    filename, lineno, function, user, *_ = data
    return Frame(filename, lineno, function, bool(user))


def rows_to_dict(log: EventLog, first: int, last: int) -> dict[str, Any]:
    """Return the rows from ``first`` up to ``last`` for JSON."""
    rows = slice(first, last)
    kinds, times = log.kind[rows], log.time[rows]
    before = log.time[first - 1] if first else 0
    frees = map(eq, kinds, repeat(FREE))
    back = [
        row - pair if pair >= 0 else 0
        for row, pair in compress(zip(count(first), log.pair[rows]), frees)
    ]
    return {
        "rows": len(kinds),
        **{column: _shortest(getattr(log, column)[rows]) for column in _PLAIN},
        "address": list(log.address[rows]),
        "time": _shortest(array("q", map(sub, times, [before, *times[:-1]]))),
        "back": _shortest(back),
    }


def add_rows(log: EventLog, data: Any) -> None:
    """Append rows of :func:`rows_to_dict` to a log."""
    rows, first = data["rows"], len(log)
    for column in _PLAIN:
        getattr(log, column).extend(_column(log.COLUMNS[column], data[column], rows))
    times = _column("q", data["time"], rows)
    log.time.extend(array("q", accumulate(times, initial=log.time[-1] if first else 0))[1:])
    log.pair.extend(array("i", [-1]) * rows)
    frees = list(compress(range(first, first + rows), map(eq, log.kind[first:], repeat(FREE))))
    pairs = log.pair
    for free, distance in zip(frees, _column("i", data["back"], len(frees)), strict=True):
        if distance:
            pairs[free], pairs[free - distance] = free - distance, free


def _shortest(values: Sequence[int]) -> int | list[int]:
    if len(values) > 1 and min(values) == max(values):
        return values[0]
    return list(values)


def _column(code: str, data: Any, rows: int) -> array[int]:
    if not isinstance(data, list):
        return array(code, [data]) * rows
    values = array(code, data)
    if len(values) != rows:
        raise ValueError(f"a column of {len(values)} in place of {rows} rows")
    return values


_T = TypeVar("_T")
_PART = 10_000
_LEVEL = 4
"""Compression level: a third of the default's time for a tenth more bytes."""


def write(recording: Recording, *, compressed: bool = False) -> bytes:
    """Return the content of a `.tlens` file; ``compressed`` makes it gzip."""
    content = b"".join(_checked(_lines(recording), len(recording.log)))
    return gzip.compress(content, _LEVEL, mtime=0) if compressed else content


def packed(recording: Recording) -> str:
    """Return the content of a `.tlens.gz` file in base64, as text within another file."""
    return base64.b64encode(write(recording, compressed=True)).decode("ascii")


def _checked(lines: Iterable[bytes], events: int) -> Iterator[bytes]:
    """Yield the lines, then a last one with their checksum."""
    checksum = 0
    for line in lines:
        checksum = zlib.crc32(line, checksum)
        yield line
    yield _line(end={"events": events, "crc32": checksum})


def _lines(recording: Recording) -> Iterator[bytes]:
    log, origin = recording.log, recording.origin
    # logs of dropped peaks are renumbered by the log's tables, to which this may add entries
    dropped = {device: log.adopted(each) for device, each in origin.dropped_peaks.items()}
    yield _line(**_header(recording))
    yield from _parts("frames", log.stacks.frames, _frame_data)
    yield from _parts("modules", log.stacks.modules, str)
    for first in range(0, len(log.stacks), _PART):
        part = {name: list(getattr(log.stacks, name)[first : first + _PART]) for name in _OF_STACKS}
        yield _line(stacks=part)
    yield from _parts("contexts", log.contexts, asdict)
    yield from _parts("labels", log.labels, asdict)
    yield from _parts("marks", log.marks, astuple)
    yield from _parts("dropped_marks", log.dropped_marks, str)
    yield from _parts("segments", log.segments, asdict)
    for file, source in log.sources.items():
        yield _line(sources={file: source})
    for first in range(0, len(log), ROWS):
        yield _line(events=rows_to_dict(log, first, first + ROWS))
    if log.held:
        yield _line(held={"rows": list(log.held), "nbytes": list(log.held.values())})
    for device, each in dropped.items():
        rows = rows_to_dict(each, 0, len(each))
        yield _line(dropped_peak={"of": device, "devices": each.devices, **rows})


def _header(recording: Recording) -> dict[str, Any]:
    log, origin = recording.log, recording.origin
    known = {each.name: getattr(origin, each.name) for each in fields(origin)}
    # another process has another clock
    del known["dropped_peaks"], known["started_ns"]
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "contains_source": recording.contains_source,
        **known,
        "run": origin.run and asdict(origin.run),
        "source": dict(origin.source),
        "devices": log.devices,
        "segments_known": log.segments_known,
    }


def _parts(key: str, all_: Sequence[_T], to_json: Callable[[_T], Any]) -> Iterator[bytes]:
    for first in range(0, len(all_), _PART):
        yield _line(**{key: [to_json(each) for each in all_[first : first + _PART]]})


def _line(**content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode("ascii") + b"\n"


_GZIP = b"\x1f\x8b"
_BEGIN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(SCHEMA).encode() + rb'"\s*[,}]')


def begins_recording(file: BufferedReader) -> bool:
    """Return whether the first bytes are those of a recording or of gzip.

    Nothing else that tensorlens writes is gzip.
    """
    head = file.peek(256)
    return head.startswith(_GZIP) or _BEGIN.match(head) is not None


def read(file: BufferedReader) -> Recording:
    """Return the recording in a file, of which nothing has been read yet.

    Raises:
        FileFormatError: it is no recording, newer than this tensorlens, damaged or cut short.
    """
    try:
        if not file.peek(2).startswith(_GZIP):
            return _recording(file)
        # a stream: what it unpacks to is never in memory as a whole
        with gzip.GzipFile(fileobj=file) as unpacked:
            return _recording(BufferedReader(cast(Any, unpacked), 2**20))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        short = isinstance(error, EOFError)
        reason = "the file is cut short" if short else "its compression is damaged"
        raise FileFormatError(f"damaged recording: {reason}") from None
    except (RecursionError, MemoryError):
        raise FileFormatError("damaged recording: more than can be read") from None


def unpacked(kind: type[Document], data: Any) -> Recording:
    """Return the recording in the ``to_dict`` data of a record.

    Args:
        kind: class of the record.
        data: the data; ``log`` is of :func:`packed`.

    Raises:
        FileFormatError: it is something else, newer than this tensorlens, or damaged.
    """
    check_schema(data, kind.SCHEMA, kind.VERSION, kind.KIND)
    try:
        content = base64.b64decode(data.get("log"), validate=True)
    except (TypeError, ValueError):
        raise FileFormatError("damaged recording: its events are no base64") from None
    return read(BufferedReader(cast(Any, BytesIO(content))))


def _recording(lines: Iterable[bytes]) -> Recording:
    lines = iter(lines)
    first = next(lines, b"")
    if _BEGIN.match(first) is None:
        raise FileFormatError("not a tensorlens recording")
    header = _parsed(1, first)
    check_schema(header, SCHEMA, VERSION, "recording")
    with reading("recording"):
        return _Reader(header, crc32(first)).recording(lines)


def _parsed(number: int, line: bytes) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(line)
        return data
    except (ValueError, RecursionError):
        reason = f"line {number} is not JSON" if line.endswith(b"\n") else "the file is cut short"
        raise FileFormatError(f"damaged recording: {reason}") from None


class _Reader:
    def __init__(self, header: Mapping[str, Any], checksum: int) -> None:
        self._header = header
        self._checksum = checksum
        self._log = EventLog()
        self._dropped: dict[str, EventLog] = {}
        self._tables: dict[str, Callable[[Any], object]] = {
            "frames": self._into(self._log.stacks.frames, _frame),
            "modules": self._log.stacks.modules.extend,
            "stacks": self._stacks,
            "contexts": self._into(self._log.contexts, partial(restored, Context)),
            "labels": self._into(self._log.labels, partial(restored, Label)),
            "marks": self._into(self._log.marks, lambda data: Mark(*data[:3])),
            "dropped_marks": self._log.dropped_marks.extend,
            "segments": self._into(self._log.segments, partial(restored, Segment)),
            "sources": self._log.sources.update,
            "events": lambda data: add_rows(self._log, data),
            "held": self._held,
            "dropped_peak": self._dropped_peak,
        }

    def recording(self, lines: Iterable[bytes]) -> Recording:
        header, log = self._header, self._log
        log.devices = InternTable(header["devices"])
        log.segments_known = header["segments_known"] is True
        end = None
        for number, line in enumerate(lines, 2):
            content = _parsed(number, line)
            end = content.get("end")
            if end is None:
                self._checksum = crc32(line, self._checksum)
            for key, data in content.items():
                if key in self._tables:
                    self._tables[key](data)
        if end is None:
            raise FileFormatError("damaged recording: the file is cut short")
        if end["events"] != len(log) or end.get("crc32", self._checksum) != self._checksum:
            raise FileFormatError("damaged recording: it was changed after it was written")
        return Recording(
            log, restored(Origin, {"run": None, **header}, dropped_peaks=self._dropped)
        )

    def _into(self, to: list[Any], make: Callable[[Any], Any]) -> Callable[[Any], object]:
        return lambda data: to.extend(map(make, data))

    def _stacks(self, data: Any) -> None:
        for column in _OF_STACKS:
            getattr(self._log.stacks, column).extend(array("i", data[column]))

    def _held(self, data: Any) -> None:
        self._log.held.update(zip(data["rows"], data["nbytes"], strict=True))

    def _dropped_peak(self, data: Any) -> None:
        log = self._log.sibling()
        log.devices = InternTable(data["devices"])
        add_rows(log, data)
        self._dropped[data["of"]] = log
