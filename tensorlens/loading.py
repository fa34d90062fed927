"""Reads records from their files or JSON text."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_args

from tensorlens.errors import FileFormatError, TensorlensError
from tensorlens.jobs import report as jobs
from tensorlens.leaks import report as leaks
from tensorlens.lines import report as lines
from tensorlens.planning.compare import result as comparisons
from tensorlens.planning.estimate import result as estimates
from tensorlens.planning.inputs import api as plans
from tensorlens.planning.suggest import result as suggestions
from tensorlens.recording import recordings, tlens
from tensorlens.records import queues, torch_files
from tensorlens.records.torch_files import kineto
from tensorlens.tensors import difference as differences
from tensorlens.tensors import snapshot as snapshots

Record: TypeAlias = (
    lines.LineReport
    | snapshots.Snapshot
    | differences.Difference
    | recordings.Recording
    | leaks.LeakReport
    | estimates.Estimate
    | queues.Queue
    | plans.Plan
    | comparisons.Comparison
    | suggestions.Suggestions
    | jobs.JobReport
)
"""All records that can be saved and read again."""

_KINDS: dict[object, type[Record]] = {kind.SCHEMA: kind for kind in get_args(Record)}

_ELSEWHERE = {
    ".html": "open it in a browser",
    ".csv": "open it as a table",
    ".txt": "it is text to read",
    ".folded": "open it with flamegraph.pl or speedscope.app",
}
_NONE = "not a tensorlens report"
_READ = (
    "what can be read is .json and .tlens of tensorlens, memory snapshots of torch, and traces of"
    " torch.profiler"
)
_PICKLES = (b"\x80", b"PK\x03\x04")
"""First bytes of a pickle, and of the archive that ``torch.save`` writes."""
_MAX_UNPACKED = 2**26
_MAX_RATIO = 250
"""Largest ratio by which a gzip file may unpack beyond ``_MAX_UNPACKED`` bytes."""


def load(path: str | os.PathLike[str]) -> Record:
    """Return the record in a file.

    Formats are ``.json``, ``.tlens`` and ``.tlens.gz`` of tensorlens; and, read as recordings,
    torch's memory snapshots (pickled or ``.json``) and traces of ``torch.profiler`` with
    ``profile_memory=True``, which may also be ``.json.gz``. No code in a pickle runs.

    Raises:
        TensorlensError: the file does not exist or cannot be read.
        FileFormatError: its format is unknown to this tensorlens, or it is damaged.
    """
    file, name = Path(path), os.fspath(path)
    try:
        if file.is_dir():
            raise TensorlensError(f"{name} is a folder: give a .json file that tensorlens wrote")
        with file.open("rb") as stream:
            if name.lower().endswith(".json.gz"):
                content = _unpacked(stream)
            elif tlens.begins_recording(stream):
                return tlens.read(stream)
            else:
                content = stream.read()
        if content.startswith(_PICKLES):
            return recordings.Recording(*torch_files.read(content))
    except FileFormatError as error:
        raise FileFormatError(f"{name}: {error}") from None
    except FileNotFoundError:
        raise TensorlensError(f"there is no file {name}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TensorlensError(f"cannot read {name}: {reason}") from None
    try:
        return parse(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise FileFormatError(f"{name}: {_NONE}: it is not text; {_READ}") from None
    except FileFormatError as error:
        remedy = _ELSEWHERE.get(file.suffix.lower())
        if remedy is not None:
            raise FileFormatError(
                f"{name}: a {file.suffix} file is not shown again: {remedy}, or keep the .json,"
                " which shows and converts to all others"
            ) from None
        is_none = str(error).startswith(_NONE)
        raise FileFormatError(f"{name}: {error}{f'; {_READ}' if is_none else ''}") from None


def _unpacked(file: BinaryIO) -> bytes:
    """Return the content of a gzip file; refuse one that exceeds both bounds of its size."""
    most = max(_MAX_UNPACKED, _MAX_RATIO * os.fstat(file.fileno()).st_size)
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            content = stream.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise FileFormatError("damaged gzip file: it is cut short, or not gzip") from None
    if len(content) > most:
        raise FileFormatError("damaged gzip file: it unpacks to far more than it holds")
    return content


def parse(content: str) -> Record:
    """Return the record whose ``to_json`` wrote ``content``, or torch's snapshot or trace in JSON.

    Raises:
        FileFormatError: it is no JSON, no record of tensorlens, of a newer version, or damaged.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise FileFormatError(f"{_NONE}: it is not JSON") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is not None:
        return kind.from_dict(data)
    if isinstance(data, dict) and "traceEvents" in data and kineto.has_memory(data):
        return recordings.Recording(*kineto.from_trace(data))
    if isinstance(data, dict) and "device_traces" in data:
        return recordings.Recording(*torch_files.from_snapshot(data))
    raise FileFormatError(_what_it_is(data))


def _what_it_is(data: Any) -> str:
    """Return a line on JSON that is no record."""
    if isinstance(data, dict) and "traceEvents" in data:
        return (
            "a trace without allocations: record it with profile_memory=True, or open it at"
            " ui.perfetto.dev"
        )
    if isinstance(data, dict) and "speedscope" in str(data.get("$schema")):
        return "a profile, which is not shown again: open it at speedscope.app"
    return _NONE
