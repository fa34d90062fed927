"""The profiled frames running in each thread, and the peaks they owe each other.

A read of a counter starts a new peak for everybody. Whoever reads must therefore tell every
other line that is running: the callers in its own thread (when it ends) and the innermost line
of every other thread (at once), since the counters are those of the whole process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tensorlens.interpreter import reentrant_lock
from tensorlens.lines.counters import CounterSlots, Read
from tensorlens.lines.tracing.accounts import WIDTH, Account
from tensorlens.lines.tracing.activation import Activation

ADDED_FRAMES = 2
"""Of a wrapped call: the wrapper, and what hands the arguments over (see wrappers.py)."""
STEP = 50
"""Nested profiled calls after which the recursion limit is raised again."""


def _room(height: int) -> int:
    # the first time also for the step that was taken before
    return STEP * ADDED_FRAMES * (2 if height == STEP else 1)


class ThreadState:
    """State of one thread inside profiled code."""

    def __init__(self, ident: int, threads: Threads) -> None:
        self.ident = ident
        self.counters = threads.counters
        self.accounts = threads.accounts
        """Gives every account that is filled."""
        self.busy = threads.busy
        """The threads that are inside profiled code, by identity; shared by all of them."""
        self.lock = threads.lock
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
        self.traced = 0
        """How many frames have a trace function of ours."""
        self.ours: Any = None
        """The thread's trace function while there are any."""
        self.previous: Any = None
        """The one that was there before."""

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
                stack[-1].fold(activation.high)
                stack[-1].fold(activation.pending)
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
            stack[-2].fold(figures[1::WIDTH])

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
                        running.fold(peaks)
            return activation.with_pending(figures)


class Threads:
    """The states of all threads of the process."""

    def __init__(self, counters: CounterSlots, accounts: Callable[[], Sequence[Account]]) -> None:
        self.counters = counters
        self.accounts = accounts
        self.busy: dict[int, ThreadState] = {}
        # a signal handler may run profiled code while it is held
        self.lock = reentrant_lock()
        self.local = threading.local()
        """``local.state`` is the calling thread's state, once :meth:`current` was asked for it."""

    def current(self) -> ThreadState:
        """Return the state of the calling thread."""
        state: ThreadState | None = getattr(self.local, "state", None)
        if state is None:
            state = ThreadState(threading.get_ident(), self)
            self.local.state = state
        return state

    def forget_others(self) -> None:
        """Keep only the calling thread and regions: after a fork, the others do not exist."""
        mine = self.current()
        mine.ident = threading.get_ident()
        for ident in [each for each in self.busy if each >= 0]:
            del self.busy[ident]
        if mine.stack:
            self.busy[mine.ident] = mine
