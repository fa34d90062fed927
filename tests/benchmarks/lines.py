"""What one profiled line costs, and what code beside profiled code pays."""

from collections.abc import Callable
from typing import Any

import torch

import tensorlens
from tests.benchmarks.side_by_side import Timing, in_turn

LINES = 51 * 200


def _fifty_lines() -> Callable[[], Any]:
    body = "".join("        value = 1\n" for _ in range(50))
    namespace: dict[str, Any] = {}
    exec(f"def lines():\n    for _ in range(200):\n{body}", namespace)
    function: Callable[[], Any] = namespace["lines"]
    return function


def cost_of_a_line(rounds: int = 40) -> dict[str, Timing]:
    """Return the timings of 10,200 trivial lines, plain and profiled."""
    return in_turn(
        {"plain": _fifty_lines(), "profiled": tensorlens.LineProfiler()(_fifty_lines())}, rounds
    )


def python_loop() -> int:
    """Add up numbers in plain Python: what a trace function slows most."""
    total = 0
    for number in range(20_000):
        total += number
    return total


def tensor_loop() -> Any:
    """Run small tensor operations, called from Python."""
    values = torch.ones(64, 64)
    for _ in range(200):
        values = torch.relu(values @ values) * 0.01
    return values


def beside(work: Callable[[], Any], rounds: int = 40) -> dict[str, Timing]:
    """Return the timings of unprofiled `work` alone and called from a profiled line."""

    def call() -> Any:
        return work()

    profiler = tensorlens.LineProfiler()
    return in_turn({"alone": work, "called from a profiled line": profiler(call)}, rounds)
