"""The running line of a profiled frame, and the figures it is charged with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING

from tensorlens.guards import is_from_a_handler
from tensorlens.lines.tracing.accounts import WIDTH, Account, BackwardPasses

if TYPE_CHECKING:
    from tensorlens.lines.tracing.engine import ThreadState


_ENDINGS = (GeneratorExit, StopIteration, StopAsyncIteration)
"""Exceptions that end an iteration and are no failure of a line."""
_STOP_NAMES = frozenset({"_StopRecomputationError"})
"""Frameworks' exceptions that are no failure either: torch.utils.checkpoint ends a recomputed
forward with this one."""
_NO_MEMORY = "there was no memory to measure a line with"


class Activation:
    """A running frame of a profiled function, its current line and the figures at its start.

    Recursion, generators and coroutines each have their own. The tracer reports
    :meth:`enter` at the start, :meth:`line` at every line event, :meth:`finish` at a return, a
    yield or an exception, and :meth:`resume` after a yield; nothing is charged while suspended.
    """

    __slots__ = (
        "accounts", "began_ns", "called", "code", "entered", "frame", "highest_peaks",
        "hit_counted", "inner", "lineno", "missed_peaks", "start", "thread",
    )  # fmt: skip

    def __init__(self, code: CodeType, accounts: tuple[Account, ...], thread: ThreadState) -> None:
        self.code = code
        self.accounts = accounts
        self.thread = thread
        self.frame = 0
        """``id()`` of the frame; 0 if unknown."""
        self.lineno = 0
        self.start: Sequence[int] | None = None
        """Figures when the running line began; None while nothing is charged."""
        self.entered: Sequence[int] = ()
        """Figures when the frame started or resumed."""
        self.inner: list[int] = []
        """Bytes left by profiled calls of the running line, by device."""
        self.began_ns = 0
        """Time at which the running line began."""
        self.hit_counted = False
        """Whether the running hit was counted before, at a yield or at a block's begin or end."""
        self.called = False
        """Whether a profiled frame of the same thread called it."""
        self.missed_peaks: list[int] = []
        """Peaks per slot of the running line that other reads have reset."""
        self.highest_peaks: list[int] = []
        """Highest peaks per slot of the lines so far, for the caller's line."""
        for account in accounts:
            account.calls += 1

    def enter(self) -> None:
        """Become the innermost activation of the thread, at a start or after a yield."""
        self.thread.push(self)

    def line(self, lineno: int) -> None:
        """Charge the figures since the last event to the line before, and begin ``lineno``."""
        now = perf_counter_ns()
        thread = self.thread
        if len(thread.busy) > 1:
            figures = thread.read_and_raise_peaks(self)
        else:
            figures = thread.read()
            if self.missed_peaks:
                figures = self.with_missed_peaks(figures)
        # None until all is done, so that an interrupt does not have the line charged twice
        start, self.start = self.start, None
        if start is None:
            thread.raise_callers_peak(self, figures)
            self.entered = figures
        else:
            if self.called:
                raise_peaks(self.highest_peaks, figures[1::WIDTH])
            if len(figures) != len(start):
                # a device first used during this line held nothing at its start
                start = (*start, *(0,) * (len(figures) - len(start)))
            for account in self.accounts:
                self._charge_line(account, start, figures, now - self.began_ns)
            if self.inner:
                self.inner = []
            self.hit_counted = False
        for account in self.accounts:
            passes = account.backward_passes
            if passes and (lineno in passes or self.lineno in passes):
                self._update_backward_passes(passes, lineno, start, figures)
        self.lineno = lineno
        self.began_ns = perf_counter_ns()
        self.start = figures

    def _charge_line(
        self, account: Account, start: Sequence[int], figures: Sequence[int], time_ns: int
    ) -> None:
        """Add a hit of the running line to its figures in ``account``.

        The hot path. After ``note_survivors()`` a cell is updated without a call or a jump back:
        CPython switches threads only at those, so no update by another thread is lost.
        """
        stats = account.lines.get(self.lineno) or account.line(self.lineno)
        if len(stats.cells) * WIDTH < len(figures):
            stats.widen(len(figures) // WIDTH, self.thread.lock)
        stats.time_ns += time_ns
        if not self.hit_counted:
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

    def _update_backward_passes(
        self,
        passes: Mapping[int, BackwardPasses],
        lineno: int,
        start: Sequence[int] | None,
        figures: Sequence[int],
    ) -> None:
        ended, begun = passes.get(self.lineno), passes.get(lineno)
        if ended is not None and start is not None:
            peaks = figures[1::WIDTH]
            rises = [peak - level for peak, level in zip(peaks, start[::WIDTH], strict=True)]
            ended.end(self.thread.all_accounts, peaks, rises)
        if begun is not None:
            begun.begin(self.thread.all_accounts)

    def resume(self, lineno: int) -> None:
        """Go on inside ``lineno`` after a yield, without counting another hit."""
        self.enter()
        self.line(lineno)
        self.hit_counted = True

    def finish(self, error: BaseException | None = None) -> None:
        """Charge the last line at a return or yield, or when ``error`` leaves the frame."""
        try:
            if self.start is not None:
                self.line(self.lineno)
                self.thread.report_to_caller(self)
        finally:
            self.start = None
            self.thread.pop(self)
        if not self.lineno:  # it never ran: its arguments did not fit
            for account in self.accounts:
                account.calls -= 1
        if error is not None and is_failure(error):
            self.mark_raised(_line_in(error, self.code), error_line(error))

    def mark_raised(self, lineno: int | None, text: str) -> None:
        """Note that an exception left the frame from ``lineno``; from its last line if None."""
        if not self.lineno:
            return
        for account in self.accounts:
            stats = account.lines.get(lineno or 0) or account.line(self.lineno)
            stats.raised = text

    def add_account(self, account: Account) -> None:
        """Charge ``account`` as well from here on, as a ``with`` block begins."""
        if self.start is not None:
            self.line(self.lineno)
            self.hit_counted = True
        self.accounts = (*self.accounts, account)
        account.calls += 1

    def remove_account(self, account: Account, error: BaseException | None = None) -> None:
        """Undo :meth:`add_account`; ``error`` is the exception that ended the block."""
        if self.start is not None:
            self.line(self.lineno)
            self.hit_counted = True
        others = tuple(other for other in self.accounts if other is not account)
        self.accounts = (account,)
        if error is not None and is_failure(error):
            self.mark_raised(_line_in(error, account.code), error_line(error))
        self.accounts = others

    def fail(self, failure: Exception) -> None:
        """Drop the figures of the running line after a failure inside tensorlens, with a note."""
        self.start = None
        note_failure(self.accounts, "a line", failure)

    def add_inner(self, first: Sequence[int], last: Sequence[int]) -> None:
        """Add what a profiled call of the running line has left: last minus first figures."""
        for slot, allocated in enumerate(last[::WIDTH]):
            if slot == len(self.inner):
                self.inner.append(0)
            # a slice: a device that was first used since then is missing and counts as 0
            self.inner[slot] += allocated - sum(first[slot * WIDTH : slot * WIDTH + 1])

    def with_missed_peaks(self, figures: Sequence[int]) -> list[int]:
        """Return a read's figures, with peaks that other reads had reset before it."""
        missed, self.missed_peaks = self.missed_peaks, []
        raised = list(figures)
        for slot, peak in enumerate(missed):
            at = slot * WIDTH + 1
            if peak > raised[at]:
                raised[at] = peak
        return raised


def note_failure(accounts: tuple[Account, ...], what: str, failure: Exception) -> None:
    """Set the note of ``accounts`` to a failure inside tensorlens.

    Raises:
        Exception: ``failure`` itself if it comes from a signal handler of the program.
    """
    if is_from_a_handler(failure):
        raise failure
    try:
        text = f"{what} could not be measured: {error_line(failure)}"
    except MemoryError:
        text = _NO_MEMORY
    for account in accounts:
        account.failure = text


def raise_peaks(highest: list[int], peaks: Sequence[int]) -> None:
    """Set each slot of ``highest`` to the larger of itself and that of ``peaks``."""
    for slot, peak in enumerate(peaks):
        if slot >= len(highest):
            highest.append(peak)
        elif peak > highest[slot]:
            highest[slot] = peak


def _line_in(error: BaseException, code: CodeType) -> int | None:
    """Return the line of ``code`` that ``error`` came from, also if a ``finally`` ran after."""
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
    """Return whether ``error`` is a failure of the line, and not the end of an iteration."""
    return not isinstance(error, _ENDINGS) and type(error).__name__ not in _STOP_NAMES


def error_line(error: BaseException) -> str:
    """Return ``Type: text`` of an exception, with the first line of its text."""
    try:
        text = str(error).strip().splitlines()
    except Exception:  # a foreign __str__
        text = []
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
