"""What is told of a program that failed: one line, its own traceback, and what it wrote last."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.trials.protocol import Failure

_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_LAST = 2000
"""Characters of the program's own output that a failure shows."""
_SEVERAL_DEVICES = ("two different devices", "at least two devices")
"""How torch's fake tensors say that an operator has operands on several devices."""


def failure(error: BaseException, output: str) -> Failure:
    """Return what is told of an error that ended a program.

    Args:
        error: what was raised.
        output: what the program wrote.
    """
    if isinstance(error, TensorlensError):
        return Failure(str(error), is_usage=isinstance(error, UsageError))
    kind = type(error).__name__
    text = " ".join(str(error).split())[:300]
    lines = [*_own_frames(error), f"{kind}: {error}"]
    last = output[-_LAST:].strip()
    if last:
        lines += ["it wrote last:", last]
    if any(each in text for each in _SEVERAL_DEVICES):
        reason = (
            "an operator has tensors on different devices: make_step must build everything that the"
            " step uses, model and optimizer included, and put it on the device"
        )
    else:
        reason = f"{kind}: {text}"
    return Failure(f"the program failed: {reason}", "\n".join(lines))


def _own_frames(error: BaseException) -> Iterator[str]:
    """Give the traceback from where the program begins, without our own frames."""
    entries: list[Any] = traceback.extract_tb(error.__traceback__)
    begins = next((at + 1 for at, each in enumerate(entries) if each.name == "call_program"), 0)
    own = [each for each in entries[begins:] if not each.filename.startswith(_PACKAGE)]
    yield from (line.rstrip() for line in traceback.format_list(own))
