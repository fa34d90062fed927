"""Any record from its JSON text or file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeAlias

from tensorlens.errors import FileFormatError, TensorlensError
from tensorlens.records import (
    comparisons,
    differences,
    estimates,
    leaks,
    lines,
    plans,
    queues,
    recordings,
    snapshots,
    suggestions,
    tlens,
)

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
)
"""Everything that can be shown and saved; of estimates what is loaded is their recording."""

_InJson: TypeAlias = (
    lines.LineReport
    | snapshots.Snapshot
    | differences.Difference
    | leaks.LeakReport
    | queues.Queue
    | plans.Plan
    | comparisons.Comparison
    | suggestions.Suggestions
)

_KINDS: dict[object, type[_InJson]] = {
    lines.SCHEMA: lines.LineReport,
    snapshots.SCHEMA: snapshots.Snapshot,
    differences.SCHEMA: differences.Difference,
    leaks.SCHEMA: leaks.LeakReport,
    queues.SCHEMA: queues.Queue,
    plans.SCHEMA: plans.Plan,
    comparisons.SCHEMA: comparisons.Comparison,
    suggestions.SCHEMA: suggestions.Suggestions,
}


_FOR_PEOPLE = {".csv", ".html", ".txt"}
_FOREIGN = ("device_traces", "suffix_table")
_PICKLES = (b"\x80", b"PK\x03\x04")
"""How a pickle begins, and the archive of pickles that ``torch.save`` makes."""


def load(path: str | os.PathLike[str]) -> Record:
    """Return the record in a file.

    Read are the ``.json`` and ``.tlens`` that tensorlens wrote, and as recordings the memory
    snapshots that torch pickles and what its first viewer was fed. No code in a pickle is run.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
        FileFormatError: it is nothing that this tensorlens can read.
    """
    file, name = Path(path), os.fspath(path)
    try:
        if file.is_dir():
            raise TensorlensError(f"{name} is a folder: give a .json file that tensorlens wrote")
        with file.open("rb") as stream:
            if tlens.begins_recording(stream):
                return tlens.read(stream)
            content = stream.read()
        if content.startswith(_PICKLES):
            from tensorlens.records import foreign

            return foreign.read(content)
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
        raise FileFormatError(f"{name}: not a tensorlens report: it is not text") from None
    except FileFormatError as error:
        if file.suffix.lower() in _FOR_PEOPLE:
            raise FileFormatError(
                f"{name}: a {file.suffix} file cannot be shown again; keep the .json"
                " (tensorlens run -o FILE.json), which also converts to the others"
            ) from None
        raise FileFormatError(f"{name}: {error}") from None


def parse(content: str) -> Record:
    """Return the record whose ``to_json`` wrote ``content``, or torch's snapshot in JSON.

    Raises:
        FileFormatError: it is not JSON, no record of tensorlens, newer than it, or damaged.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise FileFormatError("not a tensorlens report: it is not JSON") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == recordings.SUMMARY_SCHEMA:
        raise FileFormatError(
            "a summary of a recording, without its events: keep the .tlens to show it again"
        )
    if schema == estimates.SCHEMA:
        raise FileFormatError(
            "the figures of an estimate, without its events: save the .tlens too, which shows again"
        )
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is not None:
        return kind.from_dict(data)
    if isinstance(data, dict) and not data.keys().isdisjoint(_FOREIGN):
        from tensorlens.records import foreign

        if foreign.is_viewer(data):
            return foreign.from_viewer(data)
        return foreign.from_snapshot(data, budget=len(content))
    raise FileFormatError("not a tensorlens report")
