"""One running frame: which line it is on, and what that is charged with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING

from tensorlens.guards import is_from_a_handler
from tensorlens.lines.tracing.accounts import WIDTH, Account, BackwardPass

if TYPE_CHECKING:
    from tensorlens.lines.tracing.engine import ThreadState


_ENDINGS = (GeneratorExit, StopIteration, StopAsyncIteration)
"""Exceptions that are how an iteration ends, not how a line fails."""
_STOPS = frozenset({"_StopRecomputationError"})
"""The same of a framework, by name: how torch.utils.checkpoint ends its second forward."""
_NO_MEMORY = "there was no memory to measure a line with"


class Activation:
    """One running frame of a profiled function: which line it is on, and since when.

    Recursion, generators and coroutines each have their own. The tracer reports
    :meth:`enter` at the start, :meth:`line` at every line event, :meth:`finish` at a return, a
    yield or an exception, and :meth:`resume` after a yield; in between nothing is charged to it.
    """

    __slots__ = (
        "accounts", "began", "called", "code", "entered", "frame", "high", "inner", "lineno",
        "pending", "resumed", "start", "thread",
    )  # fmt: skip

    def __init__(self, code: CodeType, accounts: tuple[Account, ...], thread: ThreadState) -> None:
        self.code = code
        self.accounts = accounts
        self.thread = thread
        self.frame = 0
        """The frame's ``id()`` where the tracer knows it."""
        self.lineno = 0
        self.start: Sequence[int] | None = None
        self.entered: Sequence[int] = ()
        """The figures when the frame started, or went on."""
        self.inner: list[int] = []
        """Bytes, a slot each, that the profiled calls of the running line have left."""
        self.began = 0
        self.resumed = False
        """The running line was counted as a hit already, before a yield."""
        self.called = False
        """Another profiled frame of the thread called it."""
        self.pending: list[int] = []
        """Peaks, a slot each, that other reads took away from the running line."""
        self.high: list[int] = []
        """The highest peak, a slot each, of the lines so far: the caller's line must know it."""
        for account in accounts:
            account.calls += 1

    def enter(self) -> None:
        """The frame starts, or goes on after a yield: it is the thread's innermost now."""
        self.thread.push(self)

    def line(self, lineno: int) -> None:
        """The frame starts to execute ``lineno``: charge what came before to the line before."""
        now = perf_counter_ns()
        thread = self.thread
        if len(thread.busy) > 1:
            figures = thread.read_beside_others(self)
        else:
            figures = thread.read()
            if self.pending:
                figures = self.with_pending(figures)
        # until all is done: an interrupt in between must not have the line charged again
        start, self.start = self.start, None
        if start is None:
            thread.tell_caller(self, figures)
            self.entered = figures
        else:
            if self.called:
                raise_peaks(self.high, figures[1::WIDTH])
            if len(figures) != len(start):
                # a device that was first used during this line held nothing when it began
                start = (*start, *(0,) * (len(figures) - len(start)))
            for account in self.accounts:
                self._charge_line(account, start, figures, now - self.began)
            if self.inner:
                self.inner = []
            self.resumed = False
        for account in self.accounts:
            passes = account.passes
            if passes and (lineno in passes or self.lineno in passes):
                self._look_at_passes(passes, lineno, start, figures)
        self.lineno = lineno
        self.began = perf_counter_ns()
        self.start = figures

    def _charge_line(
        self, account: Account, start: Sequence[int], figures: Sequence[int], time_ns: int
    ) -> None:
        """Add a hit of the running line to its figures in ``account``.

        The hot path: the updates of a cell are one straight piece. CPython switches threads only
        where a call or a loop begins anew, so that no update by another thread is lost.
        """
        stats = account.lines.get(self.lineno) or account.line(self.lineno)
        if len(stats.cells) * WIDTH < len(figures):
            stats.widen(len(figures) // WIDTH, self.thread.lock)
        stats.time_ns += time_ns
        if not self.resumed:
            stats.hits += 1
        at = 0
        for cell in stats.cells:
            before, allocated = start[at], figures[at]
            peak, reserved = figures[at + 1], figures[at + 2]
            at += WIDTH
            if cell.last_net > 0 or cell.survived:
                cell.note_survivors(before)
            if allocated > cell.allocated:
                cell.allocated = allocated
            if peak >= cell.peak:
                rise = peak - before
                if peak > cell.peak or rise > cell.rise:
                    cell.rise = rise
                cell.peak = peak
            if reserved > cell.reserved:
                cell.reserved = reserved
            net = allocated - before
            if net:
                cell.net += net
                if allocated < 0 or before < 0:
                    cell.unread = True
            if cell.net_max is None:
                cell.net_max = cell.net_first = net
                cell.first_start = before
            elif net > cell.net_max:
                cell.net_max = net
            cell.last_start = before
            cell.last_net = net
        if self.inner:
            for cell, nbytes in zip(stats.cells, self.inner, strict=False):
                cell.inner += nbytes

    def _look_at_passes(
        self,
        passes: Mapping[int, BackwardPass],
        lineno: int,
        start: Sequence[int] | None,
        figures: Sequence[int],
    ) -> None:
        ended, begun = passes.get(self.lineno), passes.get(lineno)
        if ended is not None and start is not None:
            peaks = figures[1::WIDTH]
            rises = [peak - level for peak, level in zip(peaks, start[::WIDTH], strict=True)]
            ended.end(self.thread.accounts, peaks, rises)
        if begun is not None:
            begun.begin(self.thread.accounts)

    def resume(self, lineno: int) -> None:
        """The frame goes on inside ``lineno``, whose hit was counted before it was suspended."""
        self.enter()
        self.line(lineno)
        self.resumed = True

    def finish(self, error: BaseException | None = None) -> None:
        """The frame returns, yields, or is left by ``error``: what follows is not its doing."""
        try:
            if self.start is not None:
                self.line(self.lineno)
                self.thread.charge_caller(self)
        finally:
            self.start = None
            self.thread.pop(self)
        if not self.lineno:  # it did not come to run: its arguments did not fit
            for account in self.accounts:
                account.calls -= 1
        if error is not None and is_failure(error):
            self.mark_raised(_line_in(error, self.code), error_line(error))

    def mark_raised(self, lineno: int | None, text: str) -> None:
        """Note that an exception left the frame from ``lineno``, or else from its last line."""
        if not self.lineno:
            return
        for account in self.accounts:
            stats = account.lines.get(lineno or 0) or account.line(self.lineno)
            stats.raised = text

    def join(self, account: Account) -> None:
        """Charge ``account`` as well, from the next line on: a block within the frame begins."""
        if self.start is not None:
            self.line(self.lineno)
            self.resumed = True
        self.accounts = (*self.accounts, account)
        account.calls += 1

    def part(self, account: Account, error: BaseException | None = None) -> None:
        """Undo :meth:`join`; the block ends, by ``error`` if given."""
        if self.start is not None:
            self.line(self.lineno)
            self.resumed = True
        others = tuple(other for other in self.accounts if other is not account)
        self.accounts = (account,)
        if error is not None and is_failure(error):
            self.mark_raised(_line_in(error, account.code), error_line(error))
        self.accounts = others

    def fail(self, failure: Exception) -> None:
        """Give up on the running line because of a failure inside tensorlens, and say so."""
        self.start = None
        note_failure(self.accounts, "a line", failure)

    def charge(self, first: Sequence[int], last: Sequence[int]) -> None:
        """Note what a profiled call of the running line has left, by its first and last figures."""
        for slot, allocated in enumerate(last[::WIDTH]):
            if slot == len(self.inner):
                self.inner.append(0)
            self.inner[slot] += allocated - sum(first[slot * WIDTH : slot * WIDTH + 1])

    def with_pending(self, figures: Sequence[int]) -> list[int]:
        """Return a read's figures with the peaks that other reads took away before it."""
        pending, self.pending = self.pending, []
        raised = list(figures)
        for slot, peak in enumerate(pending):
            at = slot * WIDTH + 1
            if peak > raised[at]:
                raised[at] = peak
        return raised


def note_failure(accounts: tuple[Account, ...], what: str, failure: Exception) -> None:
    """Say in the notes of ``accounts`` that something failed inside tensorlens.

    Raises:
        Exception: ``failure`` itself, if it is not ours but of the program's signal handler.
    """
    if is_from_a_handler(failure):
        raise failure
    try:
        told = f"{what} could not be measured: {error_line(failure)}"
    except MemoryError:
        told = _NO_MEMORY
    for account in accounts:
        account.failure = told


def raise_peaks(highest: list[int], peaks: Sequence[int]) -> None:
    """Raise each slot of ``highest`` to that of ``peaks`` where this is higher."""
    for slot, peak in enumerate(peaks):
        if slot >= len(highest):
            highest.append(peak)
        elif peak > highest[slot]:
            highest[slot] = peak


def _line_in(error: BaseException, code: CodeType) -> int | None:
    """Return the line of ``code`` that ``error`` came from, which may be above a ``finally``."""
    seen = error.__traceback__
    while seen is not None:
        passed = seen.tb_frame.f_code
        # a twin has a code object of its own
        if passed is code or (
            passed.co_firstlineno == code.co_firstlineno
            and passed.co_filename == code.co_filename
            and passed.co_qualname == code.co_qualname
        ):
            return seen.tb_lineno
        seen = seen.tb_next
    return None


def is_failure(error: BaseException) -> bool:
    """Tell whether a line that ``error`` leaves has failed, rather than an iteration ended."""
    return not isinstance(error, _ENDINGS) and type(error).__name__ not in _STOPS


def error_line(error: BaseException) -> str:
    """Return ``Type: text`` of an exception, the first line of its text only."""
    try:
        text = str(error).strip().splitlines()
    except Exception:  # somebody's __str__
        text = []
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
