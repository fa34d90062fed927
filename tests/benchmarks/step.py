"""A training step of about 2 ms (MLP, Adam), with the training loop and the step profiled."""

import contextlib
import importlib.util
import io
import sys
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch import nn

import tensorlens
from tests.benchmarks.side_by_side import Timing, in_turn

STEPS = 40
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def training(wrap: Wrap, batch: int) -> Callable[[], Any]:
    """Return a function that runs STEPS training steps, its parts passed through `wrap`."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(net.parameters())
    criterion = nn.CrossEntropyLoss()
    inputs, labels = torch.randn(batch, 256), torch.randint(0, 10, (batch,))

    def step():
        optimizer.zero_grad()
        outputs = net(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = wrap(step)

    def train():
        total = 0.0
        for _ in range(STEPS):
            total = total + step()
        return total

    return wrap(train)


def batch_of_two_milliseconds() -> int:
    """Return the batch size at which a step takes about 2 ms on this machine."""
    for batch in (32, 48, 64, 96, 128, 192, 256):
        train = training(lambda function: function, batch)
        train()
        times = []
        for _ in range(5):
            begun = perf_counter_ns()
            train()
            times.append(perf_counter_ns() - begun)
        if sorted(times)[2] / STEPS > 1.9e6:
            return batch
    return batch


def run(rounds: int = 40) -> dict[str, Timing]:
    """Return the timings of the plain loop and of each profiler that is installed."""
    batch = batch_of_two_milliseconds()
    plain = training(lambda function: function, batch)
    lens = training(tensorlens.LineProfiler(), batch)
    variants = {"plain": plain, "tensorlens": lens}
    if importlib.util.find_spec("line_profiler"):
        variants["line_profiler"] = _line_profiler(batch)
    if importlib.util.find_spec("pytorch_memlab"):
        variants["pytorch_memlab (CUDA stubbed)"] = _memlab(batch)
    return in_turn(variants, rounds)


def _line_profiler(batch: int) -> Callable[[], Any]:
    from line_profiler import LineProfiler

    return training(LineProfiler(), batch)


def _memlab(batch: int) -> Callable[[], Any]:
    stats = {f"{kind}.{pool}.{what}": 0 for kind in _KINDS for pool in _POOLS for what in _WHATS}
    torch.cuda.memory_stats = lambda device=None: dict(stats)
    torch.cuda.is_available = lambda: False
    torch.cuda.reset_peak_memory_stats = lambda device=None: None
    torch.cuda.reset_accumulated_memory_stats = lambda device=None: None
    torch.cuda.device = lambda index: contextlib.nullcontext()
    with contextlib.redirect_stdout(io.StringIO()):
        from pytorch_memlab import LineProfiler
    profiler = LineProfiler()
    train = training(lambda function: profiler.add_function(function) or function, batch)

    def traced():
        profiler._raw_line_records.clear()
        profiler.register_callback()
        try:
            return train()
        finally:
            sys.settrace(None)

    return traced


_KINDS = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_POOLS = ("all", "large_pool", "small_pool")
_WHATS = ("current", "peak", "allocated", "freed")
