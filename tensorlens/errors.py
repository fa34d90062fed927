"""All errors raised for users: one clear line that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal


class TensorlensError(Exception):
    """The base of all errors raised by tensorlens; its text is one line for a person.

    ``exit_code`` is what the command line exits with when it meets the error.
    """

    exit_code = 1


class UsageError(TensorlensError, ValueError):
    """An invalid argument, option or setting."""

    exit_code = 2


class ProfileError(TensorlensError, TypeError):
    """An object whose lines cannot be profiled (a builtin, a class, a native module)."""


class DeviceError(TensorlensError, ValueError):
    """A device that does not exist here, or a name that is no device."""


class FileFormatError(TensorlensError, ValueError):
    """A file that cannot be read as a record, or is damaged."""


def error_chain(
    error: BaseException, *, contexts: Literal["none", "shown", "all"]
) -> Iterator[BaseException]:
    """Yield an error, its causes, and the members of groups, each once.

    Args:
        error: the error that begins the chain.
        contexts: whether to include errors that were being handled; ``"shown"`` omits those
            that a traceback does not show, as after ``raise ... from None``.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting.append(each.__cause__)
        if contexts == "all" or (contexts == "shown" and not each.__suppress_context__):
            waiting.append(each.__context__)
        if isinstance(each, BaseExceptionGroup):
            waiting += each.exceptions
