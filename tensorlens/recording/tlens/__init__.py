"""Recordings as `.tlens` files: JSON lines, plain or gzip, in one versioned schema.

The first line is ``{"schema": "tensorlens.recording", "version": 1, ...}`` and the header. Each
line after it is an object with one key: a table (``frames``, ``modules``, ``stacks``,
``contexts``, ``labels``, ``segments``, ``marks``, ``dropped_marks``, ``sources``, ``held``,
``dropped_peak``) or a part of one, or ``events``, some rows of the log in columns. The last line is
``{"end": {"events": n, "crc32": n}}``, a checksum of the lines before it; without it the file was
cut short. Keys that a reader does not know it passes over.

Columns are named as in :class:`~tensorlens.records.events.EventLog`. A column is a list of whole
numbers, or one number where all rows have the same (of addresses, always a list). ``time`` is
what went by since the row before. In place of ``pair`` there is ``back``: for each free, how many
rows before it its allocation is, 0 where that is not in the log.
"""

from tensorlens.recording.tlens.reader import begins_recording, read, unpacked
from tensorlens.recording.tlens.writer import packed, write

__all__ = ["begins_recording", "packed", "read", "unpacked", "write"]
