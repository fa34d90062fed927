"""The one tracer of the process, and who has it switched on."""

from __future__ import annotations

import os

from tensorlens.lines.accounting import Account, Activation
from tensorlens.lines.meters import Meters
from tensorlens.lines.threads import Threads, ThreadState
from tensorlens.lines.tracer import Watched, make_tracer


class Engine:
    """Counters, threads and tracer: shared by all profilers, since a read resets every peak."""

    def __init__(self, meters: Meters | None = None) -> None:
        self.meters = meters or Meters()
        self.threads = Threads(self.meters)
        self.watched = Watched()
        self.tracer = make_tracer(self.watched, self.threads)

    def attach(self) -> None:
        """Take up frameworks imported since, unless a line is open that they would disturb."""
        if not self.threads.busy and self.meters.refresh():
            for account in self.watched.all():
                account.clear()

    def watch(self, account: Account) -> None:
        """Report the lines of the account's code to it."""
        if self.watched.add(account):
            self.tracer.watch(account.code)

    def unwatch(self, account: Account) -> None:
        """Stop to report them."""
        if self.watched.remove(account):
            self.tracer.unwatch(account.code)

    def ready(self) -> ThreadState:
        """Return the calling thread's state, with the counters that are the best now."""
        thread = self.threads.current()
        if not thread.stack and not thread.depth:
            self.attach()
            thread.renew()
        return thread

    def enable(self) -> ThreadState:
        """Switch the tracer on in the calling thread; calls nest."""
        thread = self.ready()
        if not thread.depth:
            self.tracer.enable(thread)
        thread.depth += 1
        return thread

    def disable(self, accounts: tuple[Account, ...] = ()) -> None:
        """Undo one :meth:`enable` of the calling thread.

        ``accounts`` are told when another tracer cut in meanwhile.
        """
        thread = self.threads.current()
        thread.depth -= 1
        if not thread.depth:
            trouble = self.tracer.disable(thread)
            if trouble is not None:
                for account in {*accounts, *(a for top in thread.stack for a in top.accounts)}:
                    account.failure = trouble

    def adopt(self, account: Account, frame: object) -> Activation:
        """Charge a frame that is running already to ``account``, from its next line on."""
        thread = self.enable()
        self.watch(account)
        activation = Activation(account.code, (account,), thread)
        self.tracer.adopt(thread, activation, frame)
        return activation

    def release(
        self, activation: Activation, frame: object, error: BaseException | None = None
    ) -> None:
        """Undo :meth:`adopt`; the line that is running ends here, by ``error`` if given."""
        activation.finish(error)
        self.tracer.release(activation, frame)
        for account in activation.accounts:
            self.unwatch(account)
        self.disable(activation.accounts)

    def forked(self) -> None:
        """In a new child process: what the parent measured is the parent's to report."""
        self.threads.forget_others()
        for account in self.watched.all():
            account.clear()


engine = Engine()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=engine.forked)
