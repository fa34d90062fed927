"""Recordings in the form that reads back equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorlens.errors import UsageError
from tensorlens.records import tlens
from tensorlens.records.recordings import Recording

if TYPE_CHECKING:
    from tensorlens.records.loading import Record


class TlensRenderer:
    """Writes what :func:`tensorlens.load` reads back equal; ``compressed`` makes it gzip."""

    def __init__(self, compressed: bool = False) -> None:
        self.extension = "tlens.gz" if compressed else "tlens"
        self._compressed = compressed

    def render(self, record: Record) -> bytes:
        """Return the content of the file.

        Raises:
            UsageError: the record is no recording.
        """
        if not isinstance(record, Recording):
            raise UsageError(f".{self.extension} keeps recordings; save this one as .json")
        return tlens.write(record, compressed=self._compressed)
