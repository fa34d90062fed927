"""Judges a loop while it runs, for whoever is told of its steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

from tensorlens.guards import is_from_a_handler, reason
from tensorlens.leaks.report import LeakReport
from tensorlens.leaks.watch import LeakWatch

_FEWEST, _ENOUGH = 3, 6
"""Steps that count before the first verdict, which is not sure: a loop may be short; and before
the second."""
_BY_PASS = "no optimizer stepped: a step ends with each backward pass"


class LoopJudge:
    """Judges a loop while it runs: when it has ended, what it left behind may be gone.

    That is after 3 steps that count, after 6, and whenever there are twice as many, up to
    ``steps``, after which it watches no longer.

    Args:
        warmup: how many steps at the beginning do not count.
        steps: how many count at most.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        self.made = 0
        """How many steps the loop made."""
        self.is_by_pass = False
        """Whether backward passes ended the steps, as no optimizer stepped."""
        self.refusal: str | None = None
        """Why nothing is watched any more."""
        self._watch: LeakWatch | None = LeakWatch(warmup=warmup)
        self._warmup = warmup
        self._steps = steps
        self._next = min(_FEWEST, steps)
        self._report: LeakReport | None = None
        self._judged_after = 0
        self._process = os.getpid()
        self._busy = threading.Lock()

    def begin(self, follow: Callable[[], None]) -> None:
        """Begin to watch, or anew; what comes before is none of the first step."""
        if self._watch is not None:
            self._safely(self._watch.restart)
        self._safely(follow)

    def step_ended(self) -> None:
        """A step of the loop has ended."""
        if os.getpid() != self._process or not self._busy.acquire(blocking=False):
            # forked, or while a step was judged
            return
        try:
            self.made += 1
            if self._watch is None:
                return
            self._safely(self._watch.step)
            counted = self.made - self._warmup
            if counted >= self._next:
                self._judge(is_last=counted >= self._steps)
                self._next = min(_ENOUGH if counted < _ENOUGH else 2 * counted, self._steps)
        finally:
            self._busy.release()

    def pass_ended(self) -> None:
        """A backward pass has ended, in a loop whose optimizer has not stepped."""
        self.is_by_pass = True
        self.step_ended()

    def forget_passes(self) -> None:
        """An optimizer steps for the first time: its steps count, and no passes before it."""
        if self.is_by_pass and os.getpid() == self._process and self.refusal is None:
            self.is_by_pass, self.made, self._report = False, 0, None
            self._next = min(_FEWEST, self._steps)
            self._watch = self._watch or LeakWatch(warmup=self._warmup)
            self._safely(self._watch.restart)

    def finish(self) -> LeakReport | None:
        """Return the latest verdict; None where there is none.

        A loop that was too short for one is judged now.
        """
        # a signal may come while a step is judged
        if self._report is None and self.made and self._busy.acquire(blocking=False):
            try:
                self._judge()
            finally:
                self._busy.release()
        report = self._report
        if report is None:
            return None
        if self.is_by_pass:
            report = replace(report, notes=(*report.notes, _BY_PASS))
        if self.made == self._judged_after:
            return report
        note = f"judged after step {self._judged_after:,}; the program made {self.made:,}"
        return replace(report, notes=(*report.notes, note))

    def empty_report(self, why: str) -> LeakReport:
        """Return a report without a verdict."""
        return LeakReport((), (), steps=0, warmup=self._warmup, allocated={}, verdict=why)

    def _judge(self, *, is_last: bool = False) -> None:
        watch = self._watch
        if watch is None:
            return

        def judge() -> None:
            self._report = watch.stop() if is_last else watch.result()
            self._judged_after = self.made

        self._safely(judge)
        if is_last:
            self._watch = None

    def _safely(self, act: Callable[[], object]) -> None:
        """Do something in the middle of the program, which is to go on whatever happens here."""
        try:
            act()
        except Exception as failure:
            if is_from_a_handler(failure):
                raise
            self._watch = None
            self.refusal = reason(failure)
