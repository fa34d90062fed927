"""Choose when a program's steps are judged, while its loop still runs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from tensorlens.guards import reason
from tensorlens.leaks.report import LeakReport
from tensorlens.leaks.watch import LeakWatch
from tensorlens.signals import is_from_a_handler

_FEWEST = 3
"""Steps that count before there is a first verdict: not sure, but a loop may be as short."""
_ENOUGH = 6


class LoopJudge:
    """Judges a loop now and then: when it has ended, what it left behind may be gone.

    That is after 3 steps that count, after 6, and whenever there are twice as many, up to
    ``steps``, after which it watches no longer.

    Args:
        warmup: how many steps at the beginning do not count.
        steps: how many count at most.

    Raises:
        UsageError: ``warmup`` is negative.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        self.made = 0
        """How many steps the loop made."""
        self.refused: str | None = None
        """Why nothing is watched any more."""
        self._watch: LeakWatch | None = LeakWatch(warmup=warmup)
        self._warmup = warmup
        self._steps = steps
        self._next = min(_FEWEST, steps)
        self._report: LeakReport | None = None
        self._judged_after = 0
        self._process = os.getpid()
        self._busy = threading.Lock()

    def begin(self) -> None:
        """Begin to watch, or anew; what comes before is none of the first step."""
        watch = self._watch
        if watch is not None:
            self.safely(watch.restart)

    def step_ended(self) -> None:
        """A step of the loop has ended."""
        if os.getpid() != self._process or not self._busy.acquire(blocking=False):
            # forked, or while a step was judged
            return
        try:
            self.made += 1
            if self._watch is not None:
                self.safely(self._watch.step)
                self._judge_now_and_then()
        finally:
            self._busy.release()

    def finish(self) -> LeakReport | None:
        """Return the latest verdict; None where there is none.

        A loop that was too short for one is judged now.
        """
        if self._report is None and self.made:
            # a signal may come while a step is judged
            if self._busy.acquire(blocking=False):
                try:
                    self._judge()
                finally:
                    self._busy.release()
        return self._noted()

    def _judge_now_and_then(self) -> None:
        counted = self.made - self._warmup
        if counted < self._next:
            return
        is_last = counted >= self._steps
        self._judge(is_last)
        self._next = min(_ENOUGH if counted < _ENOUGH else 2 * counted, self._steps)
        if is_last:
            self._watch = None

    def _judge(self, is_last: bool = False) -> None:
        watch = self._watch
        if watch is None:
            return

        def judge() -> None:
            self._report = watch.stop() if is_last else watch.result()
            self._judged_after = self.made

        self.safely(judge)

    def safely(self, act: Callable[[], object]) -> None:
        """Do something in the middle of the program, which is to go on whatever happens here."""
        try:
            act()
        except Exception as failure:
            if is_from_a_handler(failure):
                raise
            self._watch = None
            self.refused = reason(failure)

    def _noted(self) -> LeakReport | None:
        report = self._report
        if report is None or self.made == self._judged_after:
            return report
        note = f"judged after step {self._judged_after:,}; the program made {self.made:,}"
        return replace(report, notes=(*report.notes, note))
