"""Exceptions of the program's own signal handlers, which may run in the middle of our code.

A time limit by ``signal.alarm`` raises wherever the program happens to be; when that is inside
a hook, the exception is the program's and must reach it.
"""

from __future__ import annotations

import signal
from types import CodeType


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
