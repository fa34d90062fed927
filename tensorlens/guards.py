"""Failures inside tensorlens, where the program's own code is running: told once, in one line.

What measures goes on without what failed; the program goes on in any case. What a signal handler
of the program raises in the middle of our code, as a time limit by ``signal.alarm`` does, is the
program's own and reaches it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import CodeType

from tensorlens.errors import DeviceError, ProfileError, TensorlensError, UsageError
from tensorlens.streams import write

REFUSALS = (UsageError, ProfileError, DeviceError)
"""Errors about what the user gave us, which reach the user."""

_told: set[str] = set()


@contextmanager
def guarded(consequence: str) -> Iterator[None]:
    """Let no failure inside tensorlens out of a ``with`` block.

    Args:
        consequence: what is not measured then: ``"work() is not profiled"``.

    Raises:
        UsageError, ProfileError, DeviceError: what the user gave cannot be taken.
        Exception: whatever a signal handler of the program raised meanwhile.
    """
    try:
        yield
    except REFUSALS:
        raise
    except Exception as error:
        if is_from_a_handler(error):
            raise
        warn(consequence, error)


def is_from_a_handler(error: BaseException) -> bool:
    """Tell whether a signal handler of the program raised ``error``; no, without memory to look."""
    try:
        handlers = _handlers()
    except MemoryError:
        return False
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in handlers:
            return True
        step = step.tb_next
    return False


def _handlers() -> set[CodeType]:
    found = (signal.getsignal(number) for number in signal.valid_signals())
    functions = (getattr(handler, "__func__", handler) for handler in found)
    codes = (getattr(function, "__code__", None) for function in functions)
    return {code for code in codes if isinstance(code, CodeType)}


def warn(consequence: str, error: BaseException) -> None:
    """Say on standard error what is not measured and why; the same thing once a process."""
    # not the warnings module: -W error would make an exception of it
    with suppress(Exception):
        line = f"tensorlens: {consequence}: {reason(error)}"
        if line not in _told:
            _told.add(line)
            write(f"{line}\n", sys.stderr)


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return an error's text in one line, at most so many characters of it."""
    return " ".join(str(error).split())[:most]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Return an error in one line: its text where it is ours, else its type as well."""
    try:
        text = one_line(error)
        text = "".join(each for each in text if each.isprintable())
    except Exception:  # somebody's __str__
        text = ""
    if isinstance(error, TensorlensError) and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
