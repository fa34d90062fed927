"""The training step of `step`, with births watched, and the two lookups in the block table."""

from array import array
from collections.abc import Callable

import torch

from tensorlens.frameworks.torch import TorchAllocator, native
from tests.benchmarks.side_by_side import Timing, Work, in_turn
from tests.benchmarks.step import batch_of_two_milliseconds, training

BLOCKS = 100_000
ALLOCATIONS = 10_000


def steps(rounds: int = 60) -> dict[str, Timing]:
    """Return the timings of the plain training loop, and with births watched."""
    train = training(lambda function: function, batch_of_two_milliseconds())
    return _off_and_on(train, rounds)


def allocations(rounds: int = 100) -> dict[str, Timing]:
    """Return the timings of ALLOCATIONS times `torch.empty`."""

    def allocate() -> None:
        empty = torch.empty
        for _ in range(ALLOCATIONS):
            empty(10)

    return _off_and_on(allocate, rounds)


def lookups(rounds: int = 30) -> dict[str, Timing]:
    """Return the timings of a balance and of all births, with BLOCKS live tensors."""
    allocator, _ = native.install()
    kept = [torch.empty(1, dtype=torch.uint8) for _ in range(BLOCKS)]
    addresses = array("Q", [tensor.data_ptr() for tensor in kept])
    return in_turn(
        {
            "balance": lambda: allocator.balance(addresses),
            "births": lambda: allocator.births(addresses),
        },
        rounds,
    )


def _off_and_on(work: Callable[[], object], rounds: int) -> dict[str, Timing]:
    allocator, _ = native.install()
    return in_turn({"births off": work, "births on": _watched(allocator, work)}, rounds)


def _watched(allocator: TorchAllocator, work: Callable[[], object]) -> Work:
    def watched() -> None:
        allocator.watch_births()
        work()
        allocator.watch_births(False)

    return watched
