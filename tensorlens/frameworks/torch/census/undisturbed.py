"""Reading the heap and autograd's nodes without running code of the program.

The autograd engine runs without the GIL and frees what nodes saved as it goes: reading a node at
that moment may return memory that is being freed. So nodes are only read while no other thread is
in the engine.
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

_MAX_WAIT = 0.3
"""In seconds; if a backward pass takes longer, graphs are left out."""

_ENGINE = _engine_run_backward.__code__


class _ForkDamage:
    """Whether this process was forked while another thread was in the engine.

    What that thread was freeing stays half freed: no node may ever be read here.
    """

    def __init__(self) -> None:
        self.is_damaged = self._child_is_damaged = False

    def before_fork(self) -> None:
        """Note the state for the child."""
        self._child_is_damaged = self.is_damaged or is_engine_busy()

    def in_child(self) -> None:
        """Take over what the parent noted."""
        self.is_damaged = self._child_is_damaged


_fork_damage = _ForkDamage()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_fork_damage.before_fork, after_in_child=_fork_damage.in_child)


class NodeAccess:
    """Whether autograd's nodes can be read now; a call waits for a while until they can."""

    def __init__(self) -> None:
        self._left = _MAX_WAIT

    def __call__(self) -> bool:
        """Return False if a backward pass took too long."""
        if _fork_damage.is_damaged:
            return False
        while _must_wait():
            if self._left <= 0:
                return False
            began = time.monotonic()
            time.sleep(0.0005)
            self._left -= time.monotonic() - began
        return True


@contextlib.contextmanager
def undisturbed() -> Iterator[NodeAccess]:
    """Run no code of the user's in the block: no mode, no subclass's override, no finalizer."""
    can_read = NodeAccess()
    can_read()
    with paused_collector(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield can_read


def is_engine_busy() -> bool:
    """Return whether another thread is in the autograd engine."""
    own = threading.get_ident()
    # not in a variable: the frame of this function would refer to itself
    return any(
        thread != own and frame.f_code is _ENGINE for thread, frame in sys._current_frames().items()
    )


def _must_wait() -> bool:
    """Return whether another thread in the autograd engine may free what is read here."""
    if not is_engine_busy():
        return False
    # this may be one of the engine's own threads in a hook, which the other thread waits for
    return is_own_thread() or type(threading.current_thread()) is not threading._DummyThread
