"""A snapshot of many tensors, beside one collection of the garbage collector."""

import gc
import tracemalloc
from collections.abc import Callable

import torch
from torch import nn

import tensorlens
from tests.benchmarks.side_by_side import Timing, in_turn, show

TENSORS = 100_000
OTHERS = 1_000_000


class Holder:
    def __init__(self) -> None:
        self.value = torch.zeros(4)


def in_a_list() -> object:
    return [torch.zeros(4) for _ in range(TENSORS)]


def in_a_dict() -> object:
    return {f"key {index}": torch.zeros(4) for index in range(TENSORS)}


def in_attributes() -> object:
    return [Holder() for _ in range(TENSORS)]


def in_a_model() -> object:
    return nn.ModuleList(nn.Linear(1, 1) for _ in range(TENSORS // 2))


def in_training() -> object:
    """Return a model of 25,000 parameters with gradients, steps and two slots each."""
    model = nn.ModuleList(nn.ParameterList(torch.zeros(1) for _ in range(100)) for _ in range(250))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


KINDS: dict[str, Callable[[], object]] = {
    "a list": in_a_list,
    "a dict": in_a_dict,
    "attributes": in_attributes,
    "modules of two": in_a_model,
    "training: modules, Adam": in_training,
}


def snapshots(make: Callable[[], object], others: int = 0, rounds: int = 12) -> dict[str, Timing]:
    """Return the timings of a collection and of a snapshot, with 100,000 tensors alive."""
    kept = make()
    beside = [[index] for index in range(others)]
    reporter = tensorlens.MemReporter()
    gc.collect()
    timings = in_turn({"one collection": gc.collect, "snapshot": reporter.snapshot}, rounds)
    del kept, beside
    gc.collect()
    return timings


def bytes_per_tensor(make: Callable[[], object]) -> float:
    """Return what a snapshot of 100,000 tensors takes itself, for each of them."""
    kept = make()
    reporter = tensorlens.MemReporter()
    reporter.snapshot()
    reporter._last = None
    gc.collect()
    tracemalloc.start()
    snapshot = reporter.snapshot()
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    count = len(snapshot.tensors)
    del kept
    return size / count


def show_all() -> None:
    """Print all of it."""
    for others in (0, OTHERS):
        for name, make in KINDS.items():
            beside = f", {others:,} other lists" if others else ""
            show(f"{TENSORS:,} tensors in {name}{beside}", snapshots(make, others))
    for name, make in KINDS.items():
        print(f"  a snapshot's own bytes per tensor, {name}: {bytes_per_tensor(make):.0f}")


if __name__ == "__main__":
    show_all()
