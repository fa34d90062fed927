"""The one tracer of the process, who has it switched on, and the profiled frames of each thread.

A read of a counter starts a new peak for everybody. Whoever reads must therefore tell every
other line that is running: the callers in its own thread (when it ends) and the innermost line
of every other thread (at once), since the counters are those of the whole process.
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
from tensorlens.recording.oom import address_reserve

ADDED_FRAMES = 2
"""Of a wrapped call: the wrapper, and what hands the arguments over (see wrappers.py)."""
STEP = 50
"""Nested profiled calls after which the recursion limit is raised again."""


def _room(height: int) -> int:
    # the first time also for the step that was taken before
    return STEP * ADDED_FRAMES * (2 if height == STEP else 1)


class ThreadState:
    """State of one thread inside profiled code."""

    def __init__(self, ident: int, engine: Engine) -> None:
        self.ident = ident
        self.counters = engine.counters
        self.accounts = engine.watched.all
        """Gives every account that is filled."""
        self.busy = engine.busy
        """The threads that are inside profiled code, by identity; shared by all of them."""
        self.lock = engine.lock
        """Held where a peak goes from one running line to another; shared as well."""
        self.stack: list[Activation] = []
        self.depth = 0
        """How many enabled regions this thread is in."""
        self.held = 0
        """How many of them are ``with`` statements rather than calls."""
        self.interrupted = False
        """An interrupt may have ended a profiled call between two of our own steps."""
        self.lent = 0
        """How many frames the recursion limit was raised by."""
        self.generation = -1
        self.read: Read
        self.renew()

    def renew(self) -> None:
        """Make a new reader: the counters were exchanged since the last one."""
        self.read = self.counters.reader()
        self.generation = self.counters.generation

    def push(self, activation: Activation) -> None:
        """Make ``activation`` the innermost of this thread."""
        activation.called = bool(self.stack)
        if not self.stack:
            if self.generation != self.counters.generation:
                self.renew()
            self.busy[self.ident] = self
        self.stack.append(activation)

    def pop(self, activation: Activation) -> None:
        """Remove ``activation`` and let its caller's line know the highest peak inside it."""
        stack = self.stack
        if not stack or stack[-1] is not activation:
            if activation not in stack:
                return
            self.unwind(stack.index(activation) + 1)
        with self.lock:
            stack.pop()
            if stack:
                raise_peaks(stack[-1].pending, activation.high)
                raise_peaks(stack[-1].pending, activation.pending)
            else:
                self.busy.pop(self.ident, None)
        activation.high = []
        activation.pending = []

    def tell_caller(self, activation: Activation, figures: Sequence[int]) -> None:
        """Let the caller's line know the peaks that the first read of ``activation`` ended."""
        stack = self.stack
        # a generator can go on where no tracer sees it (throw() into what it delegates to)
        if (not stack or stack[-1] is not activation) and activation not in stack:
            self.push(activation)
        if len(stack) > 1 and stack[-1] is activation:
            raise_peaks(stack[-2].pending, figures[1::WIDTH])

    def charge_caller(self, activation: Activation) -> None:
        """Let the caller's line know what ``activation``, which ends, has left."""
        stack = self.stack
        callers: list[tuple[Account, int] | None] = [None]
        if len(stack) > 1 and stack[-1] is activation and activation.start is not None:
            caller = stack[-2]
            caller.charge(activation.entered, activation.start)
            callers = [(account, caller.lineno) for account in caller.accounts]
        for account in activation.accounts:
            account.callers.update(callers)

    def lend(self, height: int) -> None:
        """Raise the recursion limit if the wrapped call that begins at ``height`` begins a step.

        A wrapper adds frames to a function that calls itself, so that a recursion 1,000 deep
        would end at 333. The limit is raised by what the wrappers have taken, a step at a time,
        and lowered again on the way back.
        """
        if height % STEP == 0:
            self._raise_limit(_room(height))

    def give_back(self, height: int) -> None:
        """Undo :meth:`lend` when the call that began at ``height`` is over."""
        if height % STEP == 0:
            self._raise_limit(-min(_room(height), self.lent))

    def give_back_all(self) -> None:
        """Undo every :meth:`lend`."""
        self._raise_limit(-self.lent)

    def _raise_limit(self, frames: int) -> None:
        # too deep for the lower limit only if the program has set one of its own meanwhile
        with suppress(RecursionError, ValueError):
            sys.setrecursionlimit(sys.getrecursionlimit() + frames)
            self.lent += frames

    def unwind(self, height: int) -> None:
        """End the activations above ``height``, whose own end no tracer reported."""
        while len(self.stack) > height:
            top = self.stack[-1]
            top.start = None
            self.pop(top)

    def read_beside_others(self, activation: Activation) -> Sequence[int]:
        """Read for ``activation``, and let the running lines of other threads know the peaks.

        In one piece: between a read and the telling, another thread's line must not end.
        """
        with self.lock:
            figures = self.read()
            peaks = figures[1::WIDTH]
            for other in list(self.busy.values()):
                if other is not self:
                    for running in other.stack[-1:]:
                        raise_peaks(running.pending, peaks)
            return activation.with_pending(figures)


class Engine:
    """Counters, threads and tracer: shared by all profilers, since a read resets every peak."""

    def __init__(self, counters: CounterSlots | None = None) -> None:
        self.counters = counters or CounterSlots()
        self.watched = WatchedCode()
        self.busy: dict[int, ThreadState] = {}
        # a signal handler may run profiled code while it is held
        self.lock = reentrant_lock()
        self.local = threading.local()
        """``local.state`` is the calling thread's state, once :meth:`thread` was asked for it."""
        self.tracer = Tracer(self)
        self._followed_since = -1
        """The generation of the counters when graphs were last asked for."""

    def thread(self) -> ThreadState:
        """Return the state of the calling thread."""
        state: ThreadState | None = getattr(self.local, "state", None)
        if state is None:
            state = ThreadState(threading.get_ident(), self)
            self.local.state = state
        return state

    def attach(self, reported: Sequence[Account] = ()) -> None:
        """Take up frameworks imported since, unless a line is open that they would disturb.

        Nor while the figures of ``reported``, which came from the counters before, are wanted.
        """
        # a region has a negative identity, and renews its reader at its next read
        is_open = any(ident >= 0 for ident in list(self.busy))
        if is_open or (reported and any(account.lines for account in reported)):
            return
        exchanged = self.counters.refresh()
        if self._followed_since != self.counters.generation:
            # those of a framework that was imported since
            self._followed_since = self.counters.generation
            for account in self.watched.all():
                self._follow(account)
        if exchanged:
            for account in self.watched.all():
                calls = account.calls
                account.clear()
                if calls:
                    account.failure = (
                        f"calls before a framework was imported are left out ({calls}): "
                        "another counter had measured them"
                    )

    def watch(self, account: Account, function: FunctionType | None = None) -> None:
        """Report the lines of the account's code to it, in ``function`` by whomever it is called.

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
            self._follow(account)

    def unwatch(self, account: Account, function: FunctionType | None = None) -> None:
        """Stop to report them."""
        if function is not None:
            self.tracer.source.uninstall(function, account.code)
        self._unwatch(account, account.code)

    def _unwatch(self, account: Account, code: CodeType) -> None:
        with self.lock:
            if self.watched.remove(account, code):
                self.tracer.unwatch(code)
            if account.graphs is not None:
                account.graphs.pause()

    def _follow(self, account: Account) -> None:
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
            self.attach()
        thread.depth += 1
        return thread

    def hold(self) -> None:
        """Do :meth:`enable` for a ``with`` statement rather than for one call."""
        self.enable().held += 1

    def let_go(self, thread: ThreadState | None = None) -> None:
        """Undo one :meth:`hold`, or an :meth:`adopt` that began in ``thread``."""
        thread = thread or self.thread()
        thread.held -= 1
        thread.depth -= 1

    def _recover(self, thread: ThreadState) -> None:
        """Drop what calls left behind that an interrupt ended between two of our own steps."""
        if thread.held or is_inside_a_wrapper(sys._getframe(1)):
            return
        thread.interrupted = False
        thread.unwind(0)
        thread.give_back_all()
        thread.depth = 0

    def adopt(self, account: Account, frame: FrameType) -> Activation:
        """Charge a frame that is running already to ``account``, from its next line on.

        Its code may be another one than the account's: the same source, compiled once more.
        """
        code = original(frame.f_code)
        self._watch(account, code)
        thread = self.enable()
        thread.held += 1
        top = thread.stack[-1] if thread.stack else None
        if top is not None and top.frame == id(frame):  # the function is being profiled already
            top.join(account)
            return top
        activation = Activation(code, (account,), thread)
        activation.frame = id(frame)
        activation.enter()
        account.failure = self.tracer.source.adopt(activation, frame) or account.failure
        return activation

    def release(
        self,
        activation: Activation,
        account: Account,
        frame: FrameType,
        error: BaseException | None = None,
    ) -> None:
        """End what :meth:`adopt` began, its line by ``error`` if given; then :meth:`let_go`."""
        if len(activation.accounts) > 1:
            activation.part(account, error)
        else:
            activation.finish(error)
            trouble = self.tracer.source.release(activation, frame)
            account.failure = trouble or account.failure
        self._unwatch(account, activation.code)

    def explain(self, error: BaseException | None) -> None:
        """Add to ``error`` what a person needs to know of it, if memory has run out.

        In the outermost region of a thread alone: one further in may be in code that handles it.
        """
        if error is not None and address_reserve.may_be_out_of_memory(error):
            with guarded("an error is not explained"):
                if not self.thread().stack:
                    address_reserve.explain(error)

    def forked(self) -> None:
        """In a new child process: what the parent measured is the parent's to report."""
        # only the calling thread and regions: the others do not exist
        mine = self.thread()
        mine.ident = threading.get_ident()
        for ident in [each for each in self.busy if each >= 0]:
            del self.busy[ident]
        if mine.stack:
            self.busy[mine.ident] = mine
        for account in self.watched.all():
            account.clear()
            account.cleared = False


def is_inside_a_wrapper(frame: FrameType | None) -> bool:
    """Tell whether a profiled call is running, apart from the one that is just being entered."""
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
