"""The lines of a `.tlens` file to a recording."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from io import BufferedReader, BytesIO
from itertools import count
from math import isfinite
from typing import Any, cast

from tensorlens.errors import FileFormatError
from tensorlens.recording.recordings import SCHEMA, VERSION, Recording
from tensorlens.recording.tlens import tables
from tensorlens.recording.tlens.tables import add_rows, check_rows, record_from_dict
from tensorlens.records.documents import (
    Document,
    check_schema,
    integer,
    items,
    mapping,
    optional,
    text,
)
from tensorlens.records.events import START, Context, EventLog, Label, Segment
from tensorlens.records.origin import Origin
from tensorlens.records.run import run_from

_GZIP = b"\x1f\x8b"
_BEGIN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(SCHEMA).encode() + rb'"\s*[,}]')
_LONGEST_LINE = 2**25
_MOST_LINES = 2**19
_MOST_UNPACKED = 2**26
_MOST_RATIO = 250
"""Past ``_MOST_UNPACKED`` bytes, how often what is packed may be in what it unpacks to."""

_DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError)


def begins_recording(file: BufferedReader) -> bool:
    """Tell whether a file is a recording, as far as its first bytes tell, or gzip; reads nothing.

    Nothing else that tensorlens writes is gzip.
    """
    head = file.peek(256)
    return head.startswith(_GZIP) or _BEGIN.match(head) is not None


def read(file: BufferedReader) -> Recording:
    """Return the recording in a file at its first byte.

    Raises:
        FileFormatError: it is no recording, newer than this tensorlens, damaged or cut short.
    """
    try:
        if not file.peek(2).startswith(_GZIP):
            return _recording(_lines(file))
        # a stream: what it unpacks to is never in memory as a whole
        with gzip.GzipFile(fileobj=file) as unpacked:
            return _recording(_limited(_lines(BufferedReader(cast(Any, unpacked), 2**20)), file))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        short = isinstance(error, EOFError)
        reason = "the file is cut short" if short else "its compression is damaged"
        raise FileFormatError(f"damaged recording: {reason}") from None
    except (RecursionError, MemoryError):
        raise FileFormatError("damaged recording: more than can be read") from None


def unpacked(kind: type[Document], data: Any) -> Recording:
    """Return the recording whose events are packed in what ``to_dict`` of a record gave.

    Args:
        kind: the record that the data is of.
        data: what it gave; ``log`` is of :func:`~tensorlens.recording.tlens.writer.packed`.

    Raises:
        FileFormatError: it is something else, newer than this tensorlens, or damaged.
    """
    check_schema(data, kind.SCHEMA, kind.VERSION, kind.KIND)
    try:
        content = base64.b64decode(text(data.get("log")), validate=True)
    except (TypeError, ValueError):
        raise FileFormatError("damaged recording: its events are no base64") from None
    return read(BufferedReader(cast(Any, BytesIO(content))))


def _recording(lines: Iterator[bytes]) -> Recording:
    first = next(lines, b"")
    if _BEGIN.match(first) is None:
        raise FileFormatError("not a tensorlens recording")
    header = _parsed(1, first)
    check_schema(header, SCHEMA, VERSION, "recording")
    try:
        return _Reader(header).recording(map(_parsed, count(2), lines))
    except _DAMAGE as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"damaged recording: {_reason(error)}") from None


def _lines(file: BufferedReader) -> Iterator[bytes]:
    for _ in range(_MOST_LINES):
        line = file.readline(_LONGEST_LINE)
        if not line:
            return
        yield line
    raise FileFormatError(f"damaged recording: more than {_MOST_LINES} lines")


def _limited(lines: Iterator[bytes], packed: BufferedReader) -> Iterator[bytes]:
    unpacked = 0
    for line in lines:
        unpacked += len(line)
        if unpacked > max(_MOST_UNPACKED, _MOST_RATIO * packed.tell()):
            raise FileFormatError("damaged recording: it unpacks to far more than it holds")
        yield line


def _parsed(number: int, line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        reason = f"line {number} is not JSON" if line.endswith(b"\n") else "the file is cut short"
        if len(line) == _LONGEST_LINE:
            reason = f"line {number} is longer than {_LONGEST_LINE} bytes"
        raise FileFormatError(f"damaged recording: {reason}") from None
    if not isinstance(data, dict):
        raise FileFormatError(f"damaged recording: line {number} is no object")
    return data


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


class _Reader:
    def __init__(self, header: Mapping[str, Any]) -> None:
        self._header = header
        self._log = EventLog()
        self._dropped: dict[str, EventLog] = {}
        self._ended = False
        self._tables: dict[str, Callable[[Any], object]] = {
            "frames": self._into(self._log.stacks.frames, tables.frame_from_list),
            "modules": self._into(self._log.stacks.modules, text),
            "stacks": lambda data: tables.add_stacks(self._log.stacks, data),
            "contexts": self._into(self._log.contexts, partial(record_from_dict, Context)),
            "labels": self._into(self._log.labels, partial(record_from_dict, Label)),
            "marks": self._into(self._log.marks, tables.mark_from_list),
            "dropped_marks": self._into(self._log.dropped_marks, text),
            "segments": self._into(self._log.segments, partial(record_from_dict, Segment)),
            "sources": lambda data: self._log.sources.update(tables.sources_from_dict(data)),
            "events": lambda data: add_rows(self._log, data),
            "held": self._held,
            "dropped_peak": self._dropped_peak,
            "end": self._end,
        }

    def recording(self, lines: Iterator[dict[str, Any]]) -> Recording:
        header, log = self._header, self._log
        log.devices = list(items(text, header["devices"]))
        log.segments_known = header["segments_known"] is True
        if len(set(log.devices)) != len(log.devices):
            raise ValueError("a device twice")
        for line in lines:
            for key, data in line.items():
                if key in self._tables:
                    self._tables[key](data)
        if not self._ended:
            raise FileFormatError("damaged recording: the file is cut short")
        tables.check_tables(log)
        for each in (log, *self._dropped.values()):
            check_rows(each)
        return Recording(log, self._origin())

    def _origin(self) -> Origin:
        header = self._header
        return Origin(
            provenance=text(header["provenance"]),
            process=optional(text, header["process"]),
            source=mapping(text, header["source"]),
            started=optional(_seconds, header["started"]),
            counted=mapping(integer, header["counted"]),
            dropped=integer(header["dropped"]),
            dropped_peaks=self._dropped,
            notes=items(text, header["notes"]),
            run=run_from(header),
        )

    def _into(self, to: list[Any], check_item: Callable[[Any], Any]) -> Callable[[Any], object]:
        return lambda data: to.extend(items(check_item, data))

    def _held(self, data: Any) -> None:
        rows, nbytes = items(integer, data["rows"]), items(integer, data["nbytes"])
        self._log.held.update(zip(rows, nbytes, strict=True))

    def _dropped_peak(self, data: Any) -> None:
        log, of = EventLog(), self._log
        log.stacks, log.contexts, log.labels = of.stacks, of.contexts, of.labels
        log.devices = list(items(text, data["devices"]))
        add_rows(log, data)
        if any(kind != START for kind in log.kind):
            raise ValueError("events in the peak of what was dropped")
        self._dropped[text(data["of"])] = log

    def _end(self, data: Any) -> None:
        if integer(data["events"]) != len(self._log):
            raise ValueError(f"{len(self._log)} events in place of {data['events']}")
        self._ended = True


def _seconds(data: Any) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float) or not isfinite(data):
        raise TypeError(f"{data!r} in place of seconds")
    return float(data)
