"""The lines of a `.tlens` file to a recording."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from io import BufferedReader, BytesIO
from typing import Any, cast
from zlib import crc32

from tensorlens.errors import FileFormatError
from tensorlens.guards import one_line
from tensorlens.recording.recordings import SCHEMA, VERSION, Recording
from tensorlens.recording.tlens import tables
from tensorlens.recording.tlens.tables import add_rows
from tensorlens.records.documents import Document, check_schema, restored
from tensorlens.records.events import Context, EventLog, Label, Mark, Segment
from tensorlens.records.origin import Origin

_GZIP = b"\x1f\x8b"
_BEGIN = re.compile(rb'\s*\{\s*"schema"\s*:\s*"' + re.escape(SCHEMA).encode() + rb'"\s*[,}]')
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
    """Return the recording whose events are packed in what ``to_dict`` of a record gave.

    Args:
        kind: the record that the data is of.
        data: what it gave; ``log`` is of :func:`~tensorlens.recording.tlens.writer.packed`.

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
    try:
        return _Reader(header, crc32(first)).recording(lines)
    except _DAMAGE as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"damaged recording: {_reason(error)}") from None


def _parsed(number: int, line: bytes) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(line)
        return data
    except (ValueError, RecursionError):
        reason = f"line {number} is not JSON" if line.endswith(b"\n") else "the file is cut short"
        raise FileFormatError(f"damaged recording: {reason}") from None


def _reason(error: Exception) -> str:
    return f"no {error}" if isinstance(error, KeyError) else one_line(error)


class _Reader:
    def __init__(self, header: Mapping[str, Any], checksum: int) -> None:
        self._header = header
        self._checksum = checksum
        self._log = EventLog()
        self._dropped: dict[str, EventLog] = {}
        self._tables: dict[str, Callable[[Any], object]] = {
            "frames": self._into(self._log.stacks.frames, tables.frame_from_list),
            "modules": self._log.stacks.modules.extend,
            "stacks": lambda data: tables.add_stacks(self._log.stacks, data),
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
        log.devices = list(header["devices"])
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

    def _held(self, data: Any) -> None:
        self._log.held.update(zip(data["rows"], data["nbytes"], strict=True))

    def _dropped_peak(self, data: Any) -> None:
        log = self._log.sibling()
        log.devices = list(data["devices"])
        add_rows(log, data)
        self._dropped[data["of"]] = log
