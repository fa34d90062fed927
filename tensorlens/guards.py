"""Failures inside tensorlens while the program runs: printed once, in one line.

The program goes on, and measuring too, without the part that failed. An exception that a signal
handler of the program raises amid our code, such as a time limit by ``signal.alarm``, reaches the
program.
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
"""Errors in what the user passed, which reach the user."""

_told: set[str] = set()


@contextmanager
def guarded(consequence: str) -> Iterator[None]:
    """Let no failure inside tensorlens out of a ``with`` block.

    Args:
        consequence: effect of a failure, for the message: ``"work() is not profiled"``.

    Raises:
        UsageError, ProfileError, DeviceError: an argument of the user is invalid.
        Exception: an exception of the program's signal handler.
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
    """Return whether a signal handler of the program raised ``error``; False if memory runs out."""
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
    """Print on standard error what is not measured and why, once for each text."""
    # not the warnings module: -W error would make an exception of it
    with suppress(Exception):
        line = f"tensorlens: {consequence}: {reason(error)}"
        if line not in _told:
            _told.add(line)
            write(f"{line}\n", sys.stderr)


def one_line(error: BaseException, most: int | None = None) -> str:
    """Return an error's text in one line, at most ``most`` characters of it."""
    return " ".join(str(error).split())[:most]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, or its type if there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def reason(error: BaseException) -> str:
    """Return an error in one line: its text, with its type unless it is ours."""
    try:
        text = one_line(error)
        text = "".join(each for each in text if each.isprintable())
    except Exception:  # somebody's __str__
        text = ""
    if isinstance(error, TensorlensError) and text:
        return text
    name = type(error).__name__
    return f"{name}: {text}" if text else name
