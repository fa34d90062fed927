"""Estimated against measured peaks of single kernels: `python -m tests.benchmarks.accuracy_kernels`.

The rows are those of ``../shared/data/measured_kernels.csv``: ``torch.cuda.max_memory_allocated()``
in MiB, the median of ten runs of a step whose gradients stay, as a 32-bit float.
"""

from __future__ import annotations

import csv
import gc
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tensorlens.allocators import CachingAllocator
from tensorlens.frameworks.torch.fake.setup import prepare
from tensorlens.records.cards import Card
from tensorlens.records.events import ALLOC, FREE
from tensorlens.records.traces import Trace

MEASURED = Path(__file__).parents[2].parent / "shared" / "data" / "measured_kernels.csv"
MIB = 1 << 20
REPEATS = 10

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


def peak(row: Row) -> float:
    """Return the peak that a row's step should have, in MiB, as the benchmark would print it.

    Call it after :func:`tensorlens.frameworks.torch.fake.setup.prepare`.
    """
    trace = _traced(row)
    peaks = [found / MIB for found in simulated(trace)]
    return _as_float(median(_as_float(each) for each in peaks) + left_over(row))


def left_over(row: Row) -> float:
    """Return the MiB that earlier parts of the same process had left behind.

    The embedding script times compiled twins before it measures memory, and what torch.compile
    keeps of them stays: in the rows, 3 weights and gradients of 32 x each width's sum over the
    vocabularies (4080 MiB at 4096 wide), and once the narrow rows have run, 2 of 765 MiB more.
    """
    if row.kernel != "embedding":
        return 0.0
    return 3 * 4080.0 + (2 * 765.0 if row.config["D"] == 4096 else 0.0)


def simulated(trace: Trace) -> list[int]:
    """Return the peak of each step, in bytes, on an allocator that begins empty."""
    log, allocator, addresses = trace.log, CachingAllocator(), {}
    starts = {mark.row for mark in log.marks if mark.name != "end"}
    ends = {mark.row for mark in log.marks[1:]}
    peaks = []
    for row in range(len(log) + 1):
        if row in ends:
            peaks.append(allocator.figures.allocated.peak)
        if row in starts:
            allocator.reset_peaks()
        if row == len(log) or not log.devices[log.device[row]].startswith("cuda"):
            continue
        if log.kind[row] == ALLOC:
            addresses[log.address[row]] = allocator.malloc(log.size[row])
        elif log.kind[row] == FREE:
            allocator.free(addresses.pop(log.address[row]))
    return peaks


def _traced(row: Row) -> Trace:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tensorlens.frameworks.torch.fake.stacks import ProgramStacks
    from tensorlens.frameworks.torch.fake.temporaries import Temporaries
    from tensorlens.frameworks.torch.fake.tracker import Hidden, Tracker
    from tests.benchmarks.kernel_programs import PROGRAMS

    temporaries = Temporaries(CARDS[row.gpu])
    met: set[int] = set()

    def hidden(func: Any, args: Any, kwargs: Any, result: Any, thread: int) -> Any:
        found = temporaries(func, args, kwargs, result, thread)
        if func.__name__.partition(".")[0] in _PRODUCTS and thread not in met:
            met.add(thread)
            space = 32 * MIB if CARDS[row.gpu].capability == (9, 0) else 8_519_680
            workspace = Hidden.exactly(space, "cuBLAS workspace", stays=True)
            return [workspace, *found]
        return found

    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with FakeTensorMode(allow_non_fake_inputs=True), stacks, Tracker(trace, stacks, hidden) as on:
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


_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
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
    for row in rows():
        if only in (None, row.kernel):
            each = Compared(row, peak(row))
            compared.append(each)
            difference = "exact" if each.exact else f"{each.difference:+.4%}"
            print(
                f"{row.kernel:<26}{row.mode:<10}{row.x:>8}{row.mib:>13.4f} MiB"
                f"{each.estimated:>13.4f} MiB{difference:>13}"
            )
    exact = sum(each.exact for each in compared)
    worst = max((abs(each.difference) for each in compared), default=0.0)
    print(f"{exact} of {len(compared)} rows exact, the worst {worst:.4%} off")


if __name__ == "__main__":
    ready = prepare(card=CARDS["NVIDIA A100-SXM4-80GB"])
    if not ready.is_ready:
        raise SystemExit(f"no CUDA device can be simulated: {ready.reason}")
    show_all(*sys.argv[1:2])
