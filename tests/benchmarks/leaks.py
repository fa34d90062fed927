"""Watching a loop for leaks: what a step costs meanwhile, and what the verdict costs at the end."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch import nn

from tensorlens import LeakWatch
from tests.benchmarks import step
from tests.benchmarks.side_by_side import Timing, in_turn, show

OBJECTS = 2_000_000
PARAMETERS = 10_000
STEPS = 6


def watched_steps(rounds: int = 40) -> dict[str, Timing]:
    """Return the timings of a loop of 2 ms steps, and of the same while it is watched."""
    batch = step.batch_of_two_milliseconds()
    plain = step.training(lambda function: function, batch)
    watch = LeakWatch().start()

    def watching(function: Callable[..., Any]) -> Callable[..., Any]:
        if function.__name__ == "train":
            return function

        def stepped() -> Any:
            result = function()
            watch.step()
            return result

        return stepped

    return in_turn({"plain": plain, "watched": step.training(watching, batch)}, rounds)


def verdict_seconds(leaks: bool) -> tuple[float, float]:
    """Return the seconds that six steps take in a large process, plain and watched to the end."""
    others = [[number] for number in range(OBJECTS)]
    net = nn.ParameterList(torch.zeros(4) for _ in range(PARAMETERS))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    kept: list[torch.Tensor] = []

    def train() -> None:
        optimizer.zero_grad()
        loss = torch.stack(list(net.parameters())).square().sum()
        loss.backward()
        optimizer.step()
        if leaks:
            kept.append(loss.detach())

    train()
    begun = perf_counter()
    for _ in range(STEPS):
        train()
    plain = perf_counter() - begun
    begun = perf_counter()
    with LeakWatch(warmup=1) as watch:
        for _ in range(STEPS):
            train()
            watch.step()
    spent = perf_counter() - begun
    assert bool(watch.report) == leaks, watch.report.verdict
    del others
    return plain, spent


def show_all() -> None:
    """Print all of it."""
    show("2 ms training step, watched for leaks, a step each", watched_steps(), per=step.STEPS)
    print(f"\nverdict on {STEPS} steps, {PARAMETERS:,} parameters, {OBJECTS:,} other objects")
    for leaks in (False, True):
        plain, spent = verdict_seconds(leaks)
        name = "one leak" if leaks else "no leak"
        print(f"  {name:<34}{plain:>8.2f} s plain   {spent:>8.2f} s watched")


if __name__ == "__main__":
    show_all()
