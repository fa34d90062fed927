"""Print estimated and measured peaks of kernels: `python -m tests.benchmarks.accuracy_kernels`.

The rows are those of ``../shared/data/measured_kernels.csv``: what
``torch.cuda.max_memory_allocated()`` gave, in MiB, the median of ten runs of a step whose gradients
stay, as a 32-bit float.
"""

from __future__ import annotations

import csv
import gc
import json
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from tensorlens import Card
from tensorlens.planning import Trace
from tensorlens.planning.allocators import CachingAllocator
from tensorlens.planning.torch import prepare
from tensorlens.records import ALLOC, FREE

MEASURED = Path(__file__).parents[2].parent / "shared" / "data" / "measured_kernels.csv"
MIB = 1 << 20
REPEATS = 10
EARLIER_PASSES = 1

CARDS = {
    "NVIDIA A100-SXM4-80GB": Card("NVIDIA A100-SXM4-80GB", (8, 0), 108, 85_174_583_296),
    "NVIDIA H100 PCIe": Card("NVIDIA H100 PCIe", (9, 0), 114, 85_028_634_624),
    "NVIDIA H100 80GB HBM3": Card("NVIDIA H100 80GB HBM3", (9, 0), 132, 85_029_158_912),
    "NVIDIA GeForce RTX 3090": Card("NVIDIA GeForce RTX 3090", (8, 6), 82, 25_438_126_080),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured peak."""

    kernel: str
    mode: str
    x: int
    config: dict[str, Any]
    gpu: str
    mib: float


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured peak and the one estimated for it."""

    row: Row
    estimated: float
    """MiB."""

    @property
    def exact(self) -> bool:
        """Whether both are the same 32-bit float."""
        return self.row.mib == self.estimated

    @property
    def difference(self) -> float:
        """Share of the measured peak that the estimate is above it."""
        return self.estimated / self.row.mib - 1


def rows() -> Iterator[Row]:
    """Give the measured rows.

    Raises:
        FileNotFoundError: the measured data is not beside the checkout.
    """
    with MEASURED.open(newline="") as file:
        for each in csv.DictReader(file):
            mode = each["kernel_operation_mode"]
            config = {**json.loads(each["extra_benchmark_config_str"]), "mode": mode}
            x, mib = int(float(each["x_value"])), float(each["y_value_50"])
            yield Row(each["kernel_name"], mode, x, config, each["gpu_name"], mib)


def peaks(group: Sequence[Row]) -> list[float]:
    """Return the peaks that the steps of one script should have, in MiB, as it would print them.

    A script runs all of its rows in one process, and has timed them before with other providers:
    each begins with what the allocator still holds. Call it after
    :func:`tensorlens.planning.torch.prepare`.
    """
    traces = [traced(row) for row in group]
    allocator = CachingAllocator()
    for _ in range(EARLIER_PASSES):
        for trace in traces:
            simulated(trace, allocator)
    found = []
    for row, trace in zip(group, traces, strict=True):
        left = left_over(row) * MIB
        runs = (_as_float((each + left) / MIB) for each in simulated(trace, allocator))
        found.append(_as_float(median(runs)))
    return found


def left_over(row: Row) -> float:
    """Return the MiB that other providers had left behind in the same process.

    No program here says how much: it is taken from the rows, where it is the same in all of a
    group. The embedding script timed compiled twins, whose weights and gradients stay: 3 times
    4080 MiB, the sum of the 4096 wide tables, then 2 times the narrow ones' 765. The SimPO script
    ran the compiled Liger loss: 2 weights of 1002 MiB, inputs and targets of the smallest batches
    and a scalar.
    """
    if row.kernel == "embedding":
        return 3 * 4080.0 + (2 * 765.0 if row.config["D"] == 4096 else 0.0)
    if row.kernel == "fused_linear_simpo_loss":
        return 2 * 1002.0 + 80 + 48 / 1024 + 512 / MIB
    return 0.0


def simulated(trace: Trace, allocator: CachingAllocator) -> list[int]:
    """Return the peak of each step, in bytes, and give back what it leaves."""
    log, addresses = trace.log, {}
    starts = {mark.row for mark in log.marks if mark.name != "end"}
    ends = {mark.row for mark in log.marks[1:]}
    found = []
    for row in range(len(log) + 1):
        if row in ends:
            found.append(allocator.figures.allocated.peak)
        if row in starts:
            allocator.reset_peaks()
        if row == len(log) or not log.devices[log.device[row]].startswith("cuda"):
            continue
        if log.kind[row] == ALLOC:
            addresses[log.address[row]] = allocator.malloc(log.size[row])
        elif log.kind[row] == FREE:
            allocator.free(addresses.pop(log.address[row]))
    for address in addresses.values():
        allocator.free(address)
    return found


def traced(row: Row) -> Trace:
    """Return what a row's program asks for, with a mark at each step."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tensorlens.planning.torch import CudaScratch, ProgramStacks, Tracker, value_patches
    from tests.benchmarks.kernel_losses import PROGRAMS

    card = CARDS[row.gpu]
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with (
        value_patches(),
        FakeTensorMode(allow_non_fake_inputs=True),
        stacks,
        torch.autograd.set_multithreading_enabled(False),
        Tracker(trace, stacks, CudaScratch(card, {}), backward_has_thread=True) as on,
    ):
        if row.kernel in _AFTER_PRODUCTS:
            _multiply_and_back()
        step = PROGRAMS[row.kernel](row.x, row.config)
        for number in range(REPEATS):
            on.mark(f"step {number + 1}")
            step()
        on.mark("end")
        del step
    gc.collect()
    return trace


_AFTER_PRODUCTS = frozenset({"geglu", "swiglu", "fused_linear_simpo_loss"})
"""Kernels whose scripts have timed forward and backward passes before in the same process."""


def _multiply_and_back() -> None:
    import torch

    x = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (x @ x).sum().backward()


def _as_float(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def show_all(only: str | None = None) -> None:
    """Print a table of all rows, or of one kernel's, and what it adds up to."""
    compared = []
    print(f"{'kernel':<26}{'mode':<10}{'x':>8}{'measured':>17}{'estimated':>17}{'difference':>13}")
    for (kernel, _), group in groupby(rows(), lambda row: (row.kernel, row.gpu)):
        if only not in (None, kernel):
            continue
        script = list(group)
        for row, estimated in zip(script, peaks(script), strict=True):
            each = Compared(row, estimated)
            compared.append(each)
            difference = "exact" if each.exact else f"{each.difference:+.4%}"
            print(
                f"{kernel:<26}{row.mode:<10}{row.x:>8}{row.mib:>13.4f} MiB"
                f"{estimated:>13.4f} MiB{difference:>13}"
            )
    exact = sum(each.exact for each in compared)
    worst = max((abs(each.difference) for each in compared), default=0.0)
    print(f"{exact} of {len(compared)} rows exact, the worst {worst:.4%} off")


if __name__ == "__main__":
    if not MEASURED.exists():
        print(f"there are no measurements at {MEASURED}")
        sys.exit()
    prepare(card=CARDS["NVIDIA A100-SXM4-80GB"])
    from tensorlens.planning.torch import calibrate

    calibrate()
    show_all(*sys.argv[1:2])
