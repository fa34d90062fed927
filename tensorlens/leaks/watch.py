"""``find_leaks()``, ``LeakWatch`` and ``LoopJudge``: what a loop's steps leave behind."""

from __future__ import annotations

import gc
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from tensorlens.errors import UsageError
from tensorlens.frameworks.registry import adapters, arrivals, missing
from tensorlens.guards import guarded, is_from_a_handler, reason
from tensorlens.leaks.followed_loop import FollowedLoop, total_figures
from tensorlens.leaks.growth.samples import LoopSamples, WatchedLoop
from tensorlens.leaks.growth.span import Span
from tensorlens.leaks.host.samples import HostSample, HostSampler
from tensorlens.leaks.report import LeakReport
from tensorlens.leaks.verdict import verdict
from tensorlens.user_code import not_run_by_a_call

_T = TypeVar("_T")

_MOST_FIGURES = 32
"""Moments whose figures are kept: at so many, every second one goes, and each two steps are one."""

_FEWEST, _ENOUGH = 3, 6
"""Steps that count before the first verdict, which is not sure: a loop may be short; and before
the second."""


class LeakWatch:
    """Watches a loop that someone else runs; ``step()`` marks the end of each step.

    ::

        with tensorlens.LeakWatch() as watch:
            for batch in loader:
                train_step(batch)
                watch.step()
        print(watch.report)

    Watching costs next to nothing while a step runs and keeps nothing alive; the verdict is found
    at the end of the ``with`` block, or by :meth:`result`, where it takes about as long as a few
    snapshots.

    Args:
        warmup: how many steps at the beginning do not count: they make the optimizer's state,
            caches and buffers.

    Raises:
        UsageError: ``warmup`` is negative.
    """

    def __init__(self, *, warmup: int = 2) -> None:
        if warmup < 0:
            raise UsageError(f"warmup={warmup}: the number of steps that do not count, 0 or more")
        self._warmup = warmup
        self._steps: FollowedLoop | None = None
        self._made = 0
        """How many steps have ended."""
        self._report: LeakReport | None = None

    def start(self) -> LeakWatch:
        """Begin to watch.

        Raises:
            UsageError: it watches already, or no framework was imported.
        """
        if self._steps is not None:
            raise UsageError("this watch is on already")
        self._adapters = adapters()
        if not self._adapters:
            raise UsageError(missing("nothing to watch", "before the watch starts"))
        self._steps = FollowedLoop(self._adapters)
        self._figures = [self._steps.figures()]
        self._made = 0
        self._stride = 1
        """How many steps lie between two figures."""
        self._collections = _collections()
        """How often the collector had run when the warm-up ended."""
        self._host = HostSampler(self._steps.pinned)
        self._report = None
        self._steps.begin()
        return self

    def step(self) -> None:
        """Say that a step has ended.

        Raises:
            UsageError: the watch is not on.
        """
        steps = self._on("step()")
        made = self._made + 1
        if made % self._stride:
            self._made = made
            return
        with guarded("a step is not told apart from the next"):
            self._look(steps, made)
            self._made = made

    def _look(self, steps: FollowedLoop, made: int) -> None:
        if made <= self._warmup:
            self._collections = _collections()
        figures = steps.figures()
        self._figures.append(figures)
        self._host.look(made, total_figures(figures).allocated.get("cpu", 0))
        if len(self._figures) > _MOST_FIGURES:
            del self._figures[1::2]
            steps.merge()
            self._stride *= 2
            self._host.thin(self._stride)
        steps.begin()

    def follow(self, items: Iterable[_T]) -> Iterator[_T]:
        """Give the items, a step's each: ``for batch in watch.follow(loader)``."""
        iterator = iter(items)
        if self._steps is None:
            self.start()
        for item in iterator:
            yield item
            # the loop's own work on it ends when it asks for the next one
            del item
            self.step()

    def stop(self) -> LeakReport:
        """Watch no longer, and return the verdict."""
        steps = self._on("stop()")
        try:
            self._report = self.result()
        except Exception as failure:
            self._report = self._without_verdict(f"not clear: {reason(failure)}")
            raise
        finally:
            self._steps = None
            steps.close()
        return self._report

    def _without_verdict(self, why: str) -> LeakReport:
        made, warmup = self._made, min(self._warmup, self._made)
        return LeakReport((), (), made - warmup, warmup, {}, why, stride=self._stride)

    @property
    def count(self) -> int:
        """How many steps have ended since it began."""
        return self._made

    def restart(self) -> LeakWatch:
        """Begin anew, or at first: what was seen so far does not count."""
        self._drop()
        return self.start()

    def result(self) -> LeakReport:
        """Return the verdict on the steps so far; while the watch is on, it goes on.

        Raises:
            UsageError: the watch is not on.
        """
        if self._steps is None and self._report is not None:
            return self._report
        steps = self._on("result()")

        def now() -> HostSample:
            return self._host.now(self._made, steps.allocated().get("cpu", 0))

        collections = _collections()
        is_on = gc.isenabled() and gc.get_threshold()[0] > 0
        is_collected = is_on or collections != self._collections
        span = Span(self._made, self._warmup, self._stride, is_collected)
        series = zip(*self._figures, strict=True)
        parts = {
            name: LoopSamples(span, own, part)
            for (name, part), own in zip(steps.parts.items(), series, strict=True)
        }
        host = [each for each in self._host.samples if each.step < self._made]
        seen = WatchedLoop(
            span=span,
            steps=steps,
            figures=tuple(map(total_figures, self._figures)),
            parts=parts,
            host=(*host, now()),
            host_now=now,
        )
        report = verdict(seen)
        # what the verdict took or freed is no growth of the program's
        self._host.samples.clear()
        self._collections += _collections() - collections
        late = [
            f"{name} was imported after the watch began, and is not in it"
            for name in arrivals(self._adapters)
        ]
        return replace(report, notes=(*report.notes, *late)) if late else report

    @property
    def report(self) -> LeakReport:
        """The verdict, when the watch has ended; else that on the steps so far."""
        return self.result()

    def _drop(self) -> None:
        steps, self._steps = self._steps, None
        if steps is not None:
            steps.close()

    def _on(self, what: str) -> FollowedLoop:
        if self._steps is None:
            raise UsageError(f"{what} is for a watch that is on: use it in a with block")
        return self._steps

    def __enter__(self) -> LeakWatch:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._steps is None:
            return
        if error is None:
            with guarded("no leaks are told"):
                self.stop()
        else:
            # a loop that failed is not judged: what its frames hold is held by the error
            self._drop()


def _collections() -> int:
    return sum(each["collections"] for each in gc.get_stats())


def find_leaks(step: Callable[..., Any], steps: int = 6, warmup: int = 2) -> LeakReport:
    """Call ``step`` some times, and tell what each call leaves behind.

    Args:
        step: called with the number of the step, or with nothing if it takes nothing.
        steps: how many calls count.
        warmup: how many calls come before, which do not count.

    Raises:
        UsageError: ``step`` cannot be called, its call runs nothing, or there are too few steps to
            tell.
        Exception: whatever ``step`` raises.
    """
    if not callable(step):
        raise UsageError("find_leaks() takes a function that does one step")
    if not_run_by_a_call(step):
        raise UsageError(
            "find_leaks() takes a function that does one step: a call of a generator or coroutine "
            "function runs nothing; give lambda: asyncio.run(step()), or use LeakWatch in the loop"
        )
    if steps < 3:
        raise UsageError(f"steps={steps}: at least 3 are needed: the last does not count")
    numbered = _takes_a_number(step)
    # what waited for the collector before is none of these steps'
    gc.collect()
    with LeakWatch(warmup=warmup) as watch:
        for number in range(warmup + steps):
            if numbered:
                step(number)
            else:
                step()
            watch.step()
    return watch.report


def _takes_a_number(step: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        # builtins and the like do not say
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        each.kind is inspect.Parameter.VAR_POSITIONAL
        or (each.kind in positional and each.default is inspect.Parameter.empty)
        for each in parameters
    )


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
            if self.made == 1 and gc.isenabled() and gc.get_threshold()[0] > 0:
                # what imports left is none of these steps'
                gc.collect()
            self._safely(self._watch.step)
            counted = self.made - self._warmup
            if counted >= self._next:
                self._judge(is_last=counted >= self._steps)
                self._next = min(_ENOUGH if counted < _ENOUGH else 2 * counted, self._steps)
        finally:
            self._busy.release()

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
