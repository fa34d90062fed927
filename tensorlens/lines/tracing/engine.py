"""The engine of the process: counters, tracer, and each thread's stack of profiled frames.

Counters are those of the whole process, and reading one resets its peak for everybody. Each read
therefore passes the peak on to every other running line: to the callers in its own thread when it
ends, to the innermost line of every other thread at once.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, FunctionType

from tensorlens.errors import ProfileError
from tensorlens.guards import guarded
from tensorlens.interpreter import reentrant_lock
from tensorlens.lines.counters import CounterSlots, Read
from tensorlens.lines.tracing.accounts import WIDTH, Account
from tensorlens.lines.tracing.activation import Activation, note_failure, raise_peaks
from tensorlens.lines.tracing.tracer import Tracer, WatchedCode, original
from tensorlens.recording import oom

ADDED_FRAMES = 2
"""Frames that wrapping adds to a call: the wrapper and the lambda of ``_moving_call()``."""
STEP = 50
"""Nested profiled calls after which the recursion limit is raised again."""


def _added_frames(height: int) -> int:
    # the first time also for the ``STEP`` calls below, for which the limit was not raised
    return STEP * ADDED_FRAMES * (2 if height == STEP else 1)


class ThreadState:
    """The profiled frames of one thread, and what it shares with the other threads."""

    def __init__(self, ident: int, engine: Engine) -> None:
        self.ident = ident
        self.counters = engine.counters
        self.all_accounts = engine.watched.all
        """Returns every watched account."""
        self.busy = engine.busy
        """Identity to state of the threads inside profiled code, and of open regions, which have
        negative identities; shared by all threads."""
        self.lock = engine.lock
        """Held while a peak is passed from one running line to another; shared as well."""
        self.stack: list[Activation] = []
        self.depth = 0
        """Number of nested calls and blocks that have the tracer on in this thread."""
        self.open_blocks = 0
        """Number of these that are blocks."""
        self.interrupted = False
        """Whether an interrupt may have ended a profiled call in the middle of our own code."""
        self.added_recursion_limit = 0
        """Frames by which the recursion limit is raised now."""
        self.generation = -1
        self.read: Read
        self.renew()

    def renew(self) -> None:
        """Make a new reader, after the counters were exchanged."""
        self.read = self.counters.reader()
        self.generation = self.counters.generation

    def push(self, activation: Activation) -> None:
        """Push ``activation`` onto the stack of this thread."""
        activation.called = bool(self.stack)
        if not self.stack:
            if self.generation != self.counters.generation:
                self.renew()
            self.busy[self.ident] = self
        self.stack.append(activation)

    def pop(self, activation: Activation) -> None:
        """Remove ``activation`` and raise its caller's peak to the highest inside it."""
        stack = self.stack
        if not stack or stack[-1] is not activation:
            if activation not in stack:
                return
            self.unwind(stack.index(activation) + 1)
        with self.lock:
            stack.pop()
            if stack:
                raise_peaks(stack[-1].missed_peaks, activation.highest_peaks)
                raise_peaks(stack[-1].missed_peaks, activation.missed_peaks)
            else:
                self.busy.pop(self.ident, None)
        activation.highest_peaks = []
        activation.missed_peaks = []

    def raise_callers_peak(self, activation: Activation, figures: Sequence[int]) -> None:
        """Give the caller the peak that the first read of ``activation`` has reset."""
        stack = self.stack
        # throw() resumes a generator that delegates without an event: it is not on the stack then
        if (not stack or stack[-1] is not activation) and activation not in stack:
            self.push(activation)
        if len(stack) > 1 and stack[-1] is activation:
            raise_peaks(stack[-2].missed_peaks, figures[1::WIDTH])

    def report_to_caller(self, activation: Activation) -> None:
        """Add the bytes that ``activation`` has left to the caller's line, and note that line."""
        stack = self.stack
        callers: list[tuple[Account, int] | None] = [None]
        if len(stack) > 1 and stack[-1] is activation and activation.start is not None:
            caller = stack[-2]
            caller.add_inner(activation.entered, activation.start)
            callers = [(account, caller.lineno) for account in caller.accounts]
        for account in activation.accounts:
            account.callers.update(callers)

    def raise_recursion_limit(self, height: int) -> None:
        """Raise the recursion limit at every ``STEP``-th nested call; ``height`` is its depth.

        The frames of wrappers count as well, so that a recursion 1,000 deep would end at 333. The
        limit is raised by their number, a step at a time, and lowered again on the way back.
        """
        if height % STEP == 0:
            self._change_limit(_added_frames(height))

    def lower_recursion_limit(self, height: int) -> None:
        """Undo :meth:`raise_recursion_limit` when the call that began at ``height`` has ended."""
        if height % STEP == 0:
            self._change_limit(-min(_added_frames(height), self.added_recursion_limit))

    def reset_recursion_limit(self) -> None:
        """Undo every :meth:`raise_recursion_limit`."""
        self._change_limit(-self.added_recursion_limit)

    def _change_limit(self, frames: int) -> None:
        # fails only if the program has set its own limit meanwhile and is deeper than the new one
        with suppress(RecursionError, ValueError):
            sys.setrecursionlimit(sys.getrecursionlimit() + frames)
            self.added_recursion_limit += frames

    def unwind(self, height: int) -> None:
        """Drop the activations above ``height``, whose end was not reported."""
        while len(self.stack) > height:
            top = self.stack[-1]
            top.start = None
            self.pop(top)

    def read_and_raise_peaks(self, activation: Activation) -> Sequence[int]:
        """Read for ``activation``, and raise the peaks of the running lines of other threads.

        Under the lock: no line of another thread may end between the two.
        """
        with self.lock:
            figures = self.read()
            peaks = figures[1::WIDTH]
            for other in list(self.busy.values()):
                if other is not self:
                    for running in other.stack[-1:]:
                        raise_peaks(running.missed_peaks, peaks)
            return activation.with_missed_peaks(figures)


class Engine:
    """Counters, threads and tracer, shared by all profilers: a read resets every peak."""

    def __init__(self, counters: CounterSlots | None = None) -> None:
        self.counters = counters or CounterSlots()
        self.watched = WatchedCode()
        self.busy: dict[int, ThreadState] = {}
        # reentrant: a signal handler may run profiled code while it is held
        self.lock = reentrant_lock()
        self.local = threading.local()
        """``local.state`` is the calling thread's state, set by :meth:`thread`."""
        self.tracer = Tracer(self)
        self._graphs_generation = -1
        """Generation of the counters when accounts were last connected to graphs."""

    def thread(self) -> ThreadState:
        """Return the state of the calling thread."""
        state: ThreadState | None = getattr(self.local, "state", None)
        if state is None:
            state = ThreadState(threading.get_ident(), self)
            self.local.state = state
        return state

    def refresh_counters(self, reported: Sequence[Account] = ()) -> None:
        """Add the counters of frameworks imported since.

        Does nothing while a line runs, or while ``reported`` has figures of the present counters.
        """
        # a region has a negative identity, and renews its reader at its next read
        is_open = any(ident >= 0 for ident in list(self.busy))
        if is_open or (reported and any(account.lines for account in reported)):
            return
        is_incompatible = self.counters.refresh()
        if self._graphs_generation != self.counters.generation:
            self._graphs_generation = self.counters.generation
            for account in self.watched.all():
                self._follow_graphs(account)
        if is_incompatible:
            for account in self.watched.all():
                calls = account.calls
                account.clear()
                if calls:
                    account.failure = (
                        f"calls before a framework was imported are left out ({calls}): "
                        "another counter had measured them"
                    )

    def watch(self, account: Account, function: FunctionType | None = None) -> None:
        """Measure the lines of the account's code; ``function`` is measured wherever it is called.

        Raises:
            ProfileError: other tools hold every tool id of ``sys.monitoring``.
        """
        self._watch(account, account.code)
        if function is not None:
            try:
                self.tracer.source.install(function, account.code)
            except ProfileError as error:
                account.failure = str(error)

    def _watch(self, account: Account, code: CodeType) -> None:
        with self.lock:
            if self.watched.knows(id(code)) is None:
                self.tracer.source.watch(code)
            self.watched.add(account, code)
            self._follow_graphs(account)

    def unwatch(self, account: Account, function: FunctionType | None = None) -> None:
        """Undo one :meth:`watch`."""
        if function is not None:
            self.tracer.source.uninstall(function, account.code)
        self._unwatch(account, account.code)

    def _unwatch(self, account: Account, code: CodeType) -> None:
        with self.lock:
            if self.watched.remove(account, code):
                self.tracer.unwatch(code)
            if account.graphs is not None:
                account.graphs.pause()

    def _follow_graphs(self, account: Account) -> None:
        try:
            for adapter in self.counters.adapters:
                if account.graphs is None:
                    account.graphs = adapter.follow_code(account.code)
            if account.graphs is not None:
                account.graphs.resume()
        except Exception as failure:
            note_failure((account,), "a graph", failure)

    def enable(self) -> ThreadState:
        """Switch the tracer on in the calling thread, with the best counters; calls nest."""
        thread = self.thread()
        if thread.interrupted:
            self._recover(thread)
        if not thread.stack and not thread.depth:
            self.refresh_counters()
        thread.depth += 1
        return thread

    def enable_for_block(self) -> None:
        """Do :meth:`enable` for a block rather than for one call."""
        self.enable().open_blocks += 1

    def disable_for_block(self, thread: ThreadState | None = None) -> None:
        """Undo one :meth:`enable_for_block`; ``thread`` is the one it began in, if not this one."""
        thread = thread or self.thread()
        thread.open_blocks -= 1
        thread.depth -= 1

    def _recover(self, thread: ThreadState) -> None:
        """Drop the state of calls that an interrupt ended in the middle of our own code."""
        if thread.open_blocks or is_inside_a_wrapper(sys._getframe(1)):
            return
        thread.interrupted = False
        thread.unwind(0)
        thread.reset_recursion_limit()
        thread.depth = 0

    def trace_running_frame(self, account: Account, frame: FrameType) -> Activation:
        """Charge a frame that already runs to ``account``, from its next line on.

        Its code may differ from the account's: the same source, compiled once more.
        """
        code = original(frame.f_code)
        self._watch(account, code)
        thread = self.enable()
        thread.open_blocks += 1
        top = thread.stack[-1] if thread.stack else None
        if top is not None and top.frame == id(frame):  # the function is being profiled already
            top.add_account(account)
            return top
        activation = Activation(code, (account,), thread)
        activation.frame = id(frame)
        activation.enter()
        account.failure = self.tracer.source.adopt(activation, frame) or account.failure
        return activation

    def untrace_running_frame(
        self,
        activation: Activation,
        account: Account,
        frame: FrameType,
        error: BaseException | None = None,
    ) -> None:
        """Undo :meth:`trace_running_frame`; :meth:`disable_for_block` is to follow."""
        if len(activation.accounts) > 1:
            activation.remove_account(account, error)
        else:
            activation.finish(error)
            problem = self.tracer.source.release(activation, frame)
            account.failure = problem or account.failure
        self._unwatch(account, activation.code)

    def explain(self, error: BaseException | None) -> None:
        """Add the explanation to ``error`` if it is an out-of-memory error.

        Only outside all profiled code of the thread: further in, the program may handle it.
        """
        if error is not None and oom.may_be_out_of_memory(error):
            with guarded("an error is not explained"):
                if not self.thread().stack:
                    oom.explain(error)

    def forked(self) -> None:
        """Clear the parent's figures in a forked child, and its other threads; regions stay."""
        mine = self.thread()
        mine.ident = threading.get_ident()
        for ident in [each for each in self.busy if each >= 0]:
            del self.busy[ident]
        if mine.stack:
            self.busy[mine.ident] = mine
        for account in self.watched.all():
            account.clear()
            # the user has cleared nothing
            account.cleared = False


def is_inside_a_wrapper(frame: FrameType | None) -> bool:
    """Return whether a profiled call is running besides the one that is being entered."""
    package = str(Path(__file__).parents[1])
    while frame is not None and frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    while frame is not None:
        if frame.f_code.co_filename.startswith(package):
            return True
        frame = frame.f_back
    return False


engine = Engine()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=engine.forked)
