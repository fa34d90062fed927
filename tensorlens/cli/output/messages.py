"""Messages of the command line itself: single lines on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from tensorlens.errors import TensorlensError
from tensorlens.render.source import printable
from tensorlens.render.terminal import for_stream
from tensorlens.streams import write

_PATIENCE = 2.0
"""Seconds."""


def say(text: str) -> None:
    """Print one line on standard error; where there is none, nobody is told."""
    # names of files and functions may hold what a terminal obeys
    line = printable(" ".join(text.split("\n")))
    with suppress(OSError, ValueError, AttributeError):
        write(f"tensorlens: {line}\n", sys.stderr)


def show(text: str) -> None:
    """Print an answer on standard output; where there is none, nothing.

    Raises:
        TensorlensError: it could not be written.
        BrokenPipeError: its reader has seen enough.
    """
    try:
        write(for_stream(text, sys.stdout), sys.stdout)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TensorlensError(f"cannot write to standard output: {reason}") from None


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Say what is being done if it takes longer than people wait in silence."""
    timer = Timer(_PATIENCE, say, (f"{doing} …",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def complain(error: TensorlensError) -> int:
    """Print an error of tensorlens's own and return the exit code it asks for."""
    say(f"error: {error}")
    return error.exit_code
