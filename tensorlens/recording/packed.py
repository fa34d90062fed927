"""The recording whose events are packed in the JSON of a record."""

from __future__ import annotations

from typing import Any

from tensorlens.errors import FileFormatError
from tensorlens.recording import tlens
from tensorlens.recording.recordings import Recording
from tensorlens.records.checking import check_schema
from tensorlens.records.documents import Document


def unpacked(kind: type[Document], data: Any, name: str) -> Recording:
    """Return the recording whose events are packed in what ``to_dict`` gave.

    Args:
        kind: the record that the data is of.
        data: what it gave.
        name: what a file without events is called, as older ones are.

    Raises:
        FileFormatError: it is something else, newer than this tensorlens, or damaged.
    """
    check_schema(data, kind.SCHEMA, kind.VERSION, kind.KIND)
    if "log" not in data:
        raise FileFormatError(f"{name} without its events, as older ones are")
    return tlens.unpacked(data["log"])
