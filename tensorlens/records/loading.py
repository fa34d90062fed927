"""Any record from its JSON text or file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeAlias

from tensorlens.errors import FileFormatError, TensorlensError
from tensorlens.records import differences, lines, snapshots

Record: TypeAlias = lines.LineReport | snapshots.Snapshot | differences.Difference
"""Everything that can be shown, saved and loaded."""

_KINDS: dict[object, type[lines.LineReport | snapshots.Snapshot | differences.Difference]] = {
    lines.SCHEMA: lines.LineReport,
    snapshots.SCHEMA: snapshots.Snapshot,
    differences.SCHEMA: differences.Difference,
}


_FOR_PEOPLE = {".csv", ".html", ".txt"}


def load(path: str | os.PathLike[str]) -> Record:
    """Return the record in a file that tensorlens wrote as JSON.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
        FileFormatError: it is nothing that this tensorlens can read.
    """
    file, name = Path(path), os.fspath(path)
    try:
        if file.is_dir():
            raise TensorlensError(f"{name} is a folder: give a .json file that tensorlens wrote")
        content = file.read_bytes()
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
    """Return the record whose ``to_json`` wrote ``content``.

    Raises:
        FileFormatError: it is not JSON, no record of tensorlens, newer than it, or damaged.
    """
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        raise FileFormatError("not a tensorlens report: it is not JSON") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    kind = _KINDS.get(schema) if isinstance(schema, str) else None
    if kind is None:
        raise FileFormatError("not a tensorlens report")
    return kind.from_dict(data)
