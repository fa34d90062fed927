"""The one tracer of the process, and who has it switched on."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, FunctionType

from tensorlens.errors import ProfileError
from tensorlens.guards import guarded
from tensorlens.lines.counters import CounterSlots
from tensorlens.lines.tracing.accounts import Account
from tensorlens.lines.tracing.activation import Activation, note_failure
from tensorlens.lines.tracing.threads import Threads, ThreadState
from tensorlens.lines.tracing.tracer import Tracer, WatchedCode
from tensorlens.recording.oom import region


class Engine:
    """Counters, threads and tracer: shared by all profilers, since a read resets every peak."""

    def __init__(self, counters: CounterSlots | None = None) -> None:
        self.counters = counters or CounterSlots()
        self.watched = WatchedCode()
        self.threads = Threads(self.counters, self.watched.all)
        self.tracer = Tracer(self.watched, self.threads)
        self._followed_since = -1
        """The generation of the counters when graphs were last asked for."""

    def attach(self, reported: Sequence[Account] = ()) -> None:
        """Take up frameworks imported since, unless a line is open that they would disturb.

        Nor while the figures of ``reported``, which came from the counters before, are wanted.
        """
        if self.threads.busy or (reported and any(account.lines for account in reported)):
            return
        exchanged = self.counters.refresh()
        if self._followed_since != self.counters.generation:
            self._follow_graphs()
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
        if self.watched.knows(id(account.code)) is None:
            self.tracer.source.watch(account.code)
        self.watched.add(account)
        if function is not None:
            try:
                self.tracer.source.install(function, account.code)
            except ProfileError as error:
                account.failure = str(error)
        self._follow(account)

    def unwatch(self, account: Account, function: FunctionType | None = None) -> None:
        """Stop to report them."""
        if function is not None:
            self.tracer.source.uninstall(function, account.code)
        if self.watched.remove(account):
            self.tracer.unwatch(account.code)
        if account.graphs is not None:
            account.graphs.pause()

    def _follow_graphs(self) -> None:
        """Follow the graphs of a framework that was imported since."""
        self._followed_since = self.counters.generation
        for account in self.watched.all():
            self._follow(account)

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
        thread = self.threads.current()
        if thread.interrupted:
            self._recover(thread)
        if not thread.stack and not thread.depth:
            self.attach()
        thread.depth += 1
        return thread

    def hold(self) -> None:
        """Do :meth:`enable` for a ``with`` statement rather than for one call."""
        self.enable().held += 1

    def let_go(self) -> None:
        """Undo one :meth:`hold`."""
        thread = self.threads.current()
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
        """Charge a frame that is running already to ``account``, from its next line on."""
        self.watch(account)
        thread = self.enable()
        thread.held += 1
        running = _activation_of(frame, thread)
        if running is not None:
            running.join(account)
            return running
        activation = Activation(account.code, (account,), thread)
        activation.frame = id(frame)
        self.tracer.source.adopt(thread, activation, frame)
        return activation

    def release(
        self,
        activation: Activation,
        account: Account,
        frame: FrameType,
        error: BaseException | None = None,
    ) -> None:
        """Undo :meth:`adopt`; the line that is running ends here, by ``error`` if given."""
        if len(activation.accounts) > 1:
            activation.part(account, error)
        else:
            activation.finish(error)
            trouble = self.tracer.source.release(activation.thread, frame)
            account.failure = trouble or account.failure
        self.unwatch(account)
        self.let_go()

    def explain(self, error: BaseException | None) -> None:
        """Add to ``error`` what a person needs to know of it, if memory has run out.

        In the outermost region of a thread alone: one further in may be in code that handles it.
        """
        if error is not None and region.may_be_out_of_memory(error):
            with guarded("an error is not explained"):
                if not self.threads.current().stack:
                    region.explain(error)

    def forked(self) -> None:
        """In a new child process: what the parent measured is the parent's to report."""
        self.threads.forget_others()
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


def _activation_of(frame: FrameType, thread: ThreadState) -> Activation | None:
    """Return the activation of ``frame`` if the function is being profiled already."""
    top = thread.stack[-1] if thread.stack else None
    return top if top is not None and top.frame == id(frame) else None


engine = Engine()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=engine.forked)
