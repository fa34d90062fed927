"""Text on standard output and the like, which may be closed, full, or gone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def write(text: str, stream: TextIO | None) -> None:
    """Write ``text``, leaving nothing of it behind in a buffer when that fails.

    The interpreter would try again at exit, complain, and change the exit code to 120. What the
    stream's encoding does not have is escaped.

    Raises:
        OSError: it could not be written.
        ValueError: the stream is closed.
    """
    if stream is None:  # as under pythonw
        return
    # a signal that came in the middle of the program's own flush finds the buffer in use
    with suppress(RuntimeError):
        stream.flush()  # what the program wrote comes first; if that fails, it is its own affair
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    standard = any(stream is one for one in (sys.__stdout__, sys.__stderr__))
    if raw is None or not standard:
        stream.write(text)
        stream.flush()
        return
    errors = stream.errors if stream.errors not in (None, "strict") else "backslashreplace"
    rest = text.replace("\n", os.linesep).encode(stream.encoding, errors)
    while rest:
        written = raw.write(rest)
        if not written:
            raise BlockingIOError("it takes nothing more without waiting")
        rest = rest[written:]
