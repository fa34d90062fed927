"""Signals that come just before a wait begins: Python runs their handler when the wait has ended.

A worker that a pool terminates while it goes to wait for its next task would wait for ever, where
the signal's default action had ended it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from tensorlens.interpreter import start_thread

_PAUSE = 0.1
"""Seconds for a handler to begin."""


class MissedSignals:
    """Sends a signal to the main thread again, which ends its wait, until its handler has begun.

    Args:
        is_waiting: tells of a signal's number whether its handler is still to begin.
    """

    def __init__(self, is_waiting: Callable[[int], bool]) -> None:
        self._is_waiting = is_waiting
        self._ends: tuple[int, int] | None = None

    def watch(self) -> None:
        """Begin, where nobody else is told of signals as they come; from the main thread."""
        if self._ends is not None or threading.current_thread() is not threading.main_thread():
            return
        other = signal.set_wakeup_fd(-1)
        if other != -1:
            signal.set_wakeup_fd(other)
            return
        ends = os.pipe()
        os.set_blocking(ends[1], False)
        signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
        self._ends = ends
        start_thread(self._listen, ends[0], threading.get_ident())

    def forget(self) -> None:
        """Let go of the pipe in a forked child: it wakes the parent."""
        ends, self._ends = self._ends, None
        if ends is None:
            return
        with suppress(OSError, ValueError):
            if signal.set_wakeup_fd(-1) not in (-1, ends[1]):
                return
        for end in ends:
            with suppress(OSError):
                os.close(end)

    def _listen(self, end: int, main: int) -> None:
        with suppress(OSError):
            while numbers := os.read(end, 64):
                time.sleep(_PAUSE)
                for number in {*numbers}:
                    if self._is_waiting(number):
                        # it is told of again
                        signal.pthread_kill(main, number)
