"""What both tracers share: which code is profiled, and for whom.

``settrace`` (Python 3.11) and ``monitoring`` (3.12 and later) differ in how the interpreter tells
them of a line; both turn what they hear into calls on :class:`~.accounting.Activation`.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Protocol

from tensorlens.frameworks.base import compiler
from tensorlens.lines.accounting import Account, Activation
from tensorlens.lines.threads import Threads, ThreadState


class Tracer(Protocol):
    """Reports the lines of watched code, in the threads that enabled it."""

    def watch(self, code: CodeType) -> None:
        """Start to report the lines of ``code``."""
        ...

    def unwatch(self, code: CodeType) -> None:
        """Stop to report them."""
        ...

    def enable(self, thread: ThreadState) -> None:
        """The calling thread enters its first profiled region."""
        ...

    def renew(self, thread: ThreadState) -> None:
        """The calling thread enters one more profiled region inside the first."""
        ...

    def disable(self, thread: ThreadState) -> str | None:
        """The calling thread left its last one; return what went wrong meanwhile, or None."""
        ...

    def adopt(self, thread: ThreadState, activation: Activation, frame: object) -> None:
        """Report the lines of a frame that is running already, from its next line on."""
        ...

    def release(self, activation: Activation, frame: object) -> None:
        """Stop what :meth:`adopt` began."""
        ...


class Watched:
    """The profiled code objects and the accounts that want their lines.

    Keyed by identity: equal code objects of two functions are two functions, and the hash of a
    code object costs microseconds.
    """

    def __init__(self) -> None:
        self._accounts: dict[int, tuple[Account, ...]] = {}
        self.knows = self._accounts.get
        """``knows(id(code))``: the accounts of a code object or None; the hot path's question."""

    def add(self, account: Account) -> None:
        """Add an account."""
        known = self._accounts.get(id(account.code), ())
        self._accounts[id(account.code)] = (*known, account)

    def remove(self, account: Account) -> bool:
        """Remove an account; return True if nobody watches its code any more."""
        key = id(account.code)
        rest = tuple(other for other in self._accounts.get(key, ()) if other is not account)
        if rest:
            self._accounts[key] = rest
        else:
            self._accounts.pop(key, None)
        return not rest

    def is_alone(self, account: Account) -> bool:
        """Tell whether nobody else wants the lines of the account's code."""
        return self._accounts.get(id(account.code)) == (account,)

    def all(self) -> list[Account]:
        """Return every account."""
        return [account for accounts in self._accounts.values() for account in accounts]


def open_activation(
    code: CodeType, accounts: tuple[Account, ...], thread: ThreadState
) -> Activation | None:
    """Return the activation of a frame that starts, or None if no account wants it now."""
    if len(accounts) > 1 or not accounts[0].switch.count:
        accounts = tuple(account for account in accounts if account.switch.count)
        if not accounts:
            return None
    if compiler.is_building():
        for account in accounts:
            account.traced += 1
        return None
    activation = Activation(code, accounts, thread)
    activation.enter()
    return activation


def make_tracer(watched: Watched, threads: Threads) -> Tracer:
    """Return the tracer for this interpreter."""
    if sys.version_info >= (3, 12):
        from tensorlens.lines.monitoring import MonitoringTracer

        return MonitoringTracer(watched, threads)
    from tensorlens.lines.settrace import SettraceTracer

    return SettraceTracer(watched, threads)
