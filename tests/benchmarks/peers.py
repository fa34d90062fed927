"""Other profilers at the same work: each takes a step and a loop, and gives the work profiled."""

import contextlib
import importlib.util
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks.side_by_side import Work

Step = Callable[[], Any]
Training = Callable[[Step], Step]
"""Makes the loop of a step."""
Peer = Callable[[Step, Training, torch.nn.Module], Work]


def peers() -> dict[str, Peer]:
    """Return the peers that are installed, by name."""
    found: dict[str, Peer] = {
        "torch.profiler, memory and stacks": torch_profiler,
        "MemTracker": mem_tracker,
    }
    others: tuple[Peer, ...] = (line_profiler, memory_profiler, memray, pytorch_memlab)
    found.update(
        (peer.__name__, peer) for peer in others if importlib.util.find_spec(peer.__name__)
    )
    return found


def torch_profiler(step: Step, training: Training, model: torch.nn.Module) -> Work:
    """Profile with torch's own profiler, and read its events."""
    train = training(step)

    def profiled() -> None:
        with torch.profiler.profile(profile_memory=True, with_stack=True) as profiler:
            train()
        profiler.events()

    return profiled


def mem_tracker(step: Step, training: Training, model: torch.nn.Module) -> Work:
    """Track with torch's MemTracker, which takes the model and one step at a time."""
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker = MemTracker()
    tracker.track_external(model)

    def one() -> None:
        step()
        tracker.reset_mod_stats()

    train = training(one)

    def tracked() -> None:
        with tracker:
            train()

    return tracked


def line_profiler(step: Step, training: Training, model: torch.nn.Module) -> Work:
    """Profile the lines of step and loop with line_profiler: times alone."""
    from line_profiler import LineProfiler

    profiler = LineProfiler()
    return profiler(training(profiler(step)))


def memory_profiler(step: Step, training: Training, model: torch.nn.Module) -> Work:
    """Profile the lines of step and loop with memory_profiler: the resident set."""
    from memory_profiler import LineProfiler

    profiler = LineProfiler()
    return profiler(training(profiler(step)))


def memray(step: Step, training: Training, model: torch.nn.Module) -> Work:
    """Track every allocation of the process with memray, into a file."""
    from memray import Tracker

    train = training(step)

    def tracked() -> None:
        with tempfile.TemporaryDirectory() as folder, Tracker(Path(folder) / "run.bin"):
            train()

    return tracked


def pytorch_memlab(step: Step, training: Training, model: torch.nn.Module) -> Work:
    """Profile the lines of step and loop with pytorch_memlab; what it asks of CUDA is made up."""
    profiler: Any = None

    def traced() -> None:
        nonlocal profiler
        with _stubbed_cuda():
            if profiler is None:
                with contextlib.redirect_stdout(io.StringIO()):
                    from pytorch_memlab import LineProfiler
                profiler = LineProfiler(step, train)
            profiler._raw_line_records.clear()
            profiler.register_callback()
            try:
                train()
            finally:
                sys.settrace(None)

    train = training(step)
    return traced


@contextlib.contextmanager
def _stubbed_cuda() -> Iterator[None]:
    stats = {f"{kind}.{pool}.{what}": 0 for kind in _KINDS for pool in _POOLS for what in _WHATS}
    stubs = {
        "memory_stats": lambda device=None: dict(stats),
        "is_available": lambda: False,
        "reset_peak_memory_stats": lambda device=None: None,
        "reset_accumulated_memory_stats": lambda device=None: None,
        "device": lambda index: contextlib.nullcontext(),
    }
    before = {name: getattr(torch.cuda, name) for name in stubs}
    try:
        for name, stub in stubs.items():
            setattr(torch.cuda, name, stub)
        yield
    finally:
        for name, function in before.items():
            setattr(torch.cuda, name, function)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let nothing be printed, by libraries of C either."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for number in (1, 2):
            os.dup2(nowhere, number)
        yield
    finally:
        for number, own in zip((1, 2), kept, strict=True):
            os.dup2(own, number)
            os.close(own)
        os.close(nowhere)


_KINDS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_POOLS = ("all", "large_pool", "small_pool")
_WHATS = ("current", "peak", "allocated", "freed")
