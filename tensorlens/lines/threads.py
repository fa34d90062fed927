"""The profiled frames running in each thread, and the peaks they owe each other.

A read of a counter starts a new peak for everybody. Whoever reads must therefore tell every
other line that is running: the callers in its own thread (when it ends) and the innermost line
of every other thread (at once), since the counters are those of the whole process.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from tensorlens.lines.accounting import WIDTH, Activation
from tensorlens.lines.meters import Meters, Read


class ThreadState:
    """What one thread is doing inside profiled code."""

    def __init__(self, ident: int, meters: Meters, busy: dict[int, ThreadState]) -> None:
        self.ident = ident
        self.meters = meters
        self.busy = busy
        """The threads that are inside profiled code, by identity; shared by all of them."""
        self.stack: list[Activation] = []
        self.depth = 0
        """How many enabled regions this thread is in."""
        self.generation = -1
        self.read: Read
        self.renew()
        self.previous: Any = None
        """The trace function that was there before ours."""
        self.ours: Any = None
        """The trace function that is ours in this thread."""
        self.plain: Any = None
        """The one to use where no other was there; kept, for it is installed at every call."""

    def renew(self) -> None:
        """Make a new reader if the counters were exchanged since the last one."""
        if self.generation != self.meters.generation or self.generation < 0:
            self.read = self.meters.reader()
            self.generation = self.meters.generation

    def push(self, activation: Activation) -> None:
        """Make ``activation`` the innermost of this thread."""
        activation.called = bool(self.stack)
        if not self.stack:
            self.busy[self.ident] = self
        self.stack.append(activation)

    def pop(self, activation: Activation) -> None:
        """Remove ``activation`` and let its caller's line know the highest peak inside it."""
        stack = self.stack
        if activation in stack:
            while stack.pop() is not activation:
                pass
        if stack:
            stack[-1].fold(activation.high)
        else:
            self.busy.pop(self.ident, None)
        activation.high = []

    def tell_caller(self, activation: Activation, figures: Sequence[int]) -> None:
        """Let the caller's line know the peaks that the first read of ``activation`` ended."""
        stack = self.stack
        if len(stack) > 1 and stack[-1] is activation:
            stack[-2].fold(figures[1::WIDTH])

    def unwind(self, height: int) -> None:
        """End the activations above ``height``, whose own end no tracer reported."""
        while len(self.stack) > height:
            top = self.stack[-1]
            top.abandon()
            self.pop(top)

    def tell_others(self, figures: Sequence[int]) -> None:
        """Let the running line of every other thread know the peaks that a read here ended."""
        peaks = figures[1::WIDTH]
        for other in list(self.busy.values()):
            if other is not self:
                for activation in other.stack[-1:]:
                    activation.fold(peaks)


class Threads:
    """The states of all threads of the process."""

    def __init__(self, meters: Meters) -> None:
        self.meters = meters
        self.busy: dict[int, ThreadState] = {}
        self.local = threading.local()
        """``local.state`` is the calling thread's state, once :meth:`current` was asked for it."""

    def current(self) -> ThreadState:
        """Return the state of the calling thread."""
        state: ThreadState | None = getattr(self.local, "state", None)
        if state is None:
            state = ThreadState(threading.get_ident(), self.meters, self.busy)
            self.local.state = state
        return state

    def forget_others(self) -> None:
        """Keep only the calling thread: after a fork, the others do not exist."""
        mine = self.current()
        mine.ident = threading.get_ident()
        self.busy.clear()
        if mine.stack:
            self.busy[mine.ident] = mine
