"""``find_leaks()``, ``LeakWatch`` and ``LoopJudge``: memory that a loop's steps leave behind."""

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
from tensorlens.frameworks.registry import adapters, imported_since, no_framework_text
from tensorlens.guards import guarded, is_from_a_handler, reason
from tensorlens.leaks.report import LeakReport
from tensorlens.leaks.verdict import verdict
from tensorlens.leaks.watched_loop import (
    FollowedLoop,
    HostSample,
    LoopSamples,
    Span,
    WatchedLoop,
    total_figures,
)
from tensorlens.user_code import not_run_by_a_call

_T = TypeVar("_T")

_MAX_FIGURES = 32
"""Figures that are kept; above it every second one is dropped, and each two steps become one."""

_FIRST_VERDICT, _SECOND_VERDICT = 3, 6
"""Counted steps before the first verdict, which is unsure but early, and before the second."""


class LeakWatch:
    """Watches a loop that someone else runs; ``step()`` marks the end of each step.

    ::

        with tensorlens.LeakWatch() as watch:
            for batch in loader:
                train_step(batch)
                watch.step()
        print(watch.report)

    Watching costs next to nothing while a step runs and keeps nothing alive. The verdict is made at
    the end of the ``with`` block, or by :meth:`result`, and takes about as long as a few snapshots.

    Args:
        warmup: number of steps at the beginning that do not count: they make the optimizer's state,
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
        """Number of steps that have ended."""
        self._report: LeakReport | None = None

    def start(self) -> LeakWatch:
        """Start watching.

        Raises:
            UsageError: the watch is on already, or no framework was imported.
        """
        if self._steps is not None:
            raise UsageError("this watch is on already")
        self._adapters = adapters()
        if not self._adapters:
            raise UsageError(no_framework_text("nothing to watch", "before the watch starts"))
        self._steps = FollowedLoop(self._adapters)
        self._figures = [self._steps.figures()]
        self._made = 0
        self._stride = 1
        """Number of steps between two figures."""
        self._collections = _collection_count()
        """Number of collections up to the end of the warm-up and during verdicts."""
        self._host: list[HostSample] = []
        self._report = None
        self._steps.begin()
        return self

    def step(self) -> None:
        """Mark the end of a step.

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
            self._collections = _collection_count()
        figures = steps.figures()
        self._figures.append(figures)
        self._host.append(steps.host_sample(made, total_figures(figures).allocated))
        if len(self._figures) > _MAX_FIGURES:
            del self._figures[1::2]
            steps.merge()
            self._stride *= 2
            self._host = [each for each in self._host if each.step % self._stride == 0]
        steps.begin()

    def follow(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, one for each step: ``for batch in watch.follow(loader)``."""
        iterator = iter(items)
        if self._steps is None:
            self.start()
        for item in iterator:
            yield item
            # the loop has done its work on the item when it asks for the next one
            del item
            self.step()

    def stop(self) -> LeakReport:
        """Stop watching, and return the verdict."""
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
        """Number of steps that have ended since the start."""
        return self._made

    def restart(self) -> LeakWatch:
        """Start, or start anew: earlier steps do not count."""
        self._drop()
        return self.start()

    def result(self) -> LeakReport:
        """Return the verdict on the steps so far; a watch that is on goes on.

        Raises:
            UsageError: the watch is not on.
        """
        if self._steps is None and self._report is not None:
            return self._report
        steps = self._on("result()")
        collections = _collection_count()
        is_on = gc.isenabled() and gc.get_threshold()[0] > 0
        is_collected = is_on or collections != self._collections
        span = Span(self._made, self._warmup, self._stride, is_collected)
        series = zip(*self._figures, strict=True)
        parts = {
            name: LoopSamples(span, own, part)
            for (name, part), own in zip(steps.parts.items(), series, strict=True)
        }
        host = [each for each in self._host if each.step < self._made]
        seen = WatchedLoop(
            span=span,
            steps=steps,
            figures=tuple(map(total_figures, self._figures)),
            parts=parts,
            host=(*host, steps.host_sample(self._made, steps.allocated())),
        )
        report = verdict(seen)
        # memory that the verdict took or freed is no growth of the program
        self._host.clear()
        self._collections += _collection_count() - collections
        late = [
            f"{name} was imported after the watch began, and is not in it"
            for name in imported_since(self._adapters)
        ]
        return replace(report, notes=(*report.notes, *late)) if late else report

    @property
    def report(self) -> LeakReport:
        """The verdict of a watch that has ended, else that on the steps so far."""
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
            # a loop that failed is not judged: the error holds the variables of its frames
            self._drop()


def _collection_count() -> int:
    return sum(each["collections"] for each in gc.get_stats())


def find_leaks(step: Callable[..., Any], steps: int = 6, warmup: int = 2) -> LeakReport:
    """Call ``step`` several times, and report what each call leaves behind.

    Args:
        step: function that is called with the number of the step, or without arguments if it takes
            none.
        steps: number of calls that count, at least 3.
        warmup: number of calls before these.

    Raises:
        UsageError: ``step`` cannot be called, its call runs nothing, or there are too few steps.
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
    # garbage from before is not of these steps
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
        # builtins may have no signature
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(
        each.kind is inspect.Parameter.VAR_POSITIONAL
        or (each.kind in positional and each.default is inspect.Parameter.empty)
        for each in parameters
    )


class LoopJudge:
    """Judges a loop while it runs: after its end, leaks may have been freed.

    The verdicts are after 3 steps that count, after 6, and after each doubling, up to ``steps``,
    where it stops watching.

    Args:
        warmup: number of steps at the beginning that do not count.
        steps: number of steps that count at most.
    """

    def __init__(self, warmup: int, steps: int) -> None:
        self.made = 0
        """Number of steps that the loop made."""
        self.refusal: str | None = None
        """Why the loop is no longer watched."""
        self._watch: LeakWatch | None = LeakWatch(warmup=warmup)
        self._warmup = warmup
        self._steps = steps
        self._next = min(_FIRST_VERDICT, steps)
        self._report: LeakReport | None = None
        self._judged_after = 0
        self._process = os.getpid()
        self._busy = threading.Lock()

    def begin(self, follow: Callable[[], None]) -> None:
        """Start watching, or start anew; ``follow`` begins to count steps."""
        if self._watch is not None:
            self._safely(self._watch.restart)
        self._safely(follow)

    def step_ended(self) -> None:
        """Count a step of the loop that has ended, and judge when it is time."""
        if os.getpid() != self._process or not self._busy.acquire(blocking=False):
            # forked, or while a step was judged
            return
        try:
            self.made += 1
            if self._watch is None:
                return
            if self.made == 1 and gc.isenabled() and gc.get_threshold()[0] > 0:
                # garbage of imports is not of these steps
                gc.collect()
            self._safely(self._watch.step)
            counted = self.made - self._warmup
            if counted >= self._next:
                self._judge(is_last=counted >= self._steps)
                self._next = min(max(_SECOND_VERDICT, 2 * counted), self._steps)
        finally:
            self._busy.release()

    def finish(self) -> LeakReport | None:
        """Return the latest verdict, if any; judge now if the loop was too short for one."""
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
        """Call ``act``; if it fails, stop watching. Raise only what a signal handler raised."""
        try:
            act()
        except Exception as failure:
            if is_from_a_handler(failure):
                raise
            self._watch = None
            self.refusal = reason(failure)
