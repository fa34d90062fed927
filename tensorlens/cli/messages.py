"""What the command line says of itself: single lines on standard error."""

from __future__ import annotations

import sys
from contextlib import suppress

from tensorlens.errors import TensorlensError


def say(text: str) -> None:
    """Print one line on standard error; where there is none, nobody is told."""
    line = " ".join(text.split("\n"))
    with suppress(OSError, ValueError, AttributeError):
        print(f"tensorlens: {line}", file=sys.stderr, flush=True)


def complain(error: TensorlensError) -> int:
    """Print an error of tensorlens's own and return the exit code it asks for."""
    say(f"error: {error}")
    return error.exit_code
