"""Threads of a program run on tensors without data, as the thread does that starts them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode

from tensorlens.frameworks.fake_torch.patches.replaced_attributes import patched


@contextlib.contextmanager
def in_threads() -> Iterator[None]:
    """Let threads that are started while it is entered have the modes of the one starting them."""
    start, run = threading.Thread.start, threading.Thread.run

    def start_with_modes(thread: Any) -> None:
        vars(thread)["_fake_modes"] = _get_current_dispatch_mode_stack()
        start(thread)

    def run_with_modes(thread: Any) -> None:
        modes = vars(thread).pop("_fake_modes", ())
        for mode in modes:
            _push_mode(mode)
        try:
            # it goes by thread
            with torch.autograd.set_multithreading_enabled(False):
                run(thread)
        finally:
            for _ in modes:
                _pop_mode()

    with (
        patched(threading.Thread, "start", start_with_modes),
        patched(threading.Thread, "run", run_with_modes),
    ):
        yield
