"""Messages of the command line itself: single lines on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from tensorlens.errors import TensorlensError
from tensorlens.render.source import printable
from tensorlens.streams import write


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
        write(text, sys.stdout)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TensorlensError(f"cannot write to standard output: {reason}") from None


def complain(error: TensorlensError) -> int:
    """Print an error of tensorlens's own and return the exit code it asks for."""
    say(f"error: {error}")
    return error.exit_code
