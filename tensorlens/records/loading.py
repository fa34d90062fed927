"""Any record from its JSON text."""

from __future__ import annotations

import json
from typing import TypeAlias

from tensorlens.errors import FileFormatError
from tensorlens.records import differences, lines, snapshots

Record: TypeAlias = lines.LineReport | snapshots.Snapshot | differences.Difference
"""Everything that can be shown, saved and loaded."""

_KINDS: dict[object, type[lines.LineReport | snapshots.Snapshot | differences.Difference]] = {
    lines.SCHEMA: lines.LineReport,
    snapshots.SCHEMA: snapshots.Snapshot,
    differences.SCHEMA: differences.Difference,
}


def load(content: str) -> Record:
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
