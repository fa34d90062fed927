"""Looks at the heap without disturbing the program, and without being disturbed by it.

The autograd engine runs without the GIL, and frees what nodes saved as it goes: whoever reads a
node at that moment may be given memory that is being freed. So a node is only read while no other
thread is inside of the engine.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.interpreter import is_own_thread, paused_collector

_LONGEST_WAIT = 0.3
"""Seconds; passes that take longer are not waited for, and graphs are left out."""

_ENGINE = _engine_run_backward.__code__


class _ForkDamage:
    """Whether this process was forked while another thread was inside of the engine.

    What that thread was about to free stays half freed: no node is ever to be read here.
    """

    def __init__(self) -> None:
        self.is_damaged = self._next = False

    def before_fork(self) -> None:
        """Note what the child will find."""
        self._next = self.is_damaged or others_run()

    def in_child(self) -> None:
        """Be the child."""
        self.is_damaged = self._next


_fork_damage = _ForkDamage()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fork_damage.before_fork, after_in_child=_fork_damage.in_child)


class NodeAccess:
    """Tells whether a node of autograd can be read now; waits for a while until it can."""

    def __init__(self) -> None:
        self._left = _LONGEST_WAIT

    def __call__(self) -> bool:
        """Return False when passes go on and on."""
        if _fork_damage.is_damaged:
            return False
        while _runs_elsewhere():
            if self._left <= 0:
                return False
            began = time.monotonic()
            time.sleep(0.0005)
            self._left -= time.monotonic() - began
        return True


@contextlib.contextmanager
def undisturbed() -> Iterator[NodeAccess]:
    """Run no code of the user's: no mode, no override of a subclass, no finalizer."""
    can_read = NodeAccess()
    can_read()
    with paused_collector(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield can_read


def others_run() -> bool:
    """Tell whether another thread is inside of the autograd engine."""
    own = threading.get_ident()
    # not kept in a variable: its frame is among them
    return any(
        thread != own and frame.f_code is _ENGINE for thread, frame in sys._current_frames().items()
    )


def _runs_elsewhere() -> bool:
    """Tell whether another thread is inside of the autograd engine."""
    if not others_run():
        return False
    # one of the engine's own threads, in a hook: who waits for it is no danger
    return is_own_thread() or type(threading.current_thread()) is not threading._DummyThread
