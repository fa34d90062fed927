"""What profiling costs on steps of four shapes, begin and end counted, beside other profilers.

The worst shape for whoever follows allocations or operators is a step of many small ones. The
learning rate is zero, so that every step of a run does the same arithmetic: of a model that has
learned its batch by heart the gradients are denormal, and products of them take four to five times
as long.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil
import torch
from tabulate import tabulate
from torch import nn

import tensorlens
from tests.benchmarks import peers
from tests.benchmarks.side_by_side import Timing, Work, in_turn, show

Made = tuple[Callable[[], Any], nn.Module]
"""A step and its model."""
SHORT, LONG = 40, 400
"""Steps of a run."""


def large_layers() -> Made:
    """Return a step of three layers up to 512 wide, batch 96."""
    net = nn.Sequential(
        nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )
    return _step(net, torch.optim.Adam(net.parameters(), lr=0.0), torch.randn(96, 256), 10)


def small_layers() -> Made:
    """Return a step of twenty ``Linear(64, 64)``, batch 32, Adam without foreach."""
    net = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.0, foreach=False)
    return _step(net, optimizer, torch.randn(32, 64), 64)


def convolutions() -> Made:
    """Return a step of three convolutions with batch norm, 8 images of 32 by 32 pixels, SGD."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 32)):
        convolution = nn.Conv2d(before, after, 3, stride=2, padding=1)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 4 * 4, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    return _step(net, optimizer, torch.randn(8, 3, 32, 32), 10)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.inner(self.first(x)).split(width, dim=2)
        query, key, value = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in parts
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outer(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


def gpt_block() -> Made:
    """Return a step of a GPT block 128 wide with 4 heads, 2 times 32 tokens, AdamW."""
    net = nn.Sequential(_Block(128, 4), nn.Flatten(0, 1), nn.Linear(128, 64))
    return _step(net, torch.optim.AdamW(net.parameters(), lr=0.0), torch.randn(2, 32, 128), 64, 64)


SHAPES: Mapping[str, Callable[[], Made]] = {
    "3 large layers": large_layers,
    "20 small layers": small_layers,
    "3 convolutions": convolutions,
    "GPT block": gpt_block,
}


def _step(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    classes: int,
    rows: int | None = None,
) -> Made:
    labels = torch.randint(0, classes, (rows or len(inputs),))
    criterion = nn.CrossEntropyLoss()

    def step():
        optimizer.zero_grad()
        loss = criterion(net(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, net


def _training(steps: int) -> peers.Training:
    def made(step):
        def train():
            for _ in range(steps):
                step()

        return train

    return made


def _recorded(train: Work, **options: Any) -> Work:
    def recorded() -> None:
        with tensorlens.record(**options):
            train()

    return recorded


def _line_profiled(step: Callable[[], Any], train: Work) -> Work:
    def profiled() -> None:
        with tensorlens.LineProfiler(step, train):
            train()

    return profiled


def lines(shape: Callable[[], Made], rounds: int = 15) -> dict[str, Timing]:
    """Return the timings of runs of 40 steps, the lines of step and loop profiled and not."""
    step, _ = shape()
    profiler = tensorlens.LineProfiler()
    train = _training(SHORT)(step)
    return in_turn(
        {
            "plain": train,
            "@profile": profiler(_training(SHORT)(profiler(shape()[0]))),
            "with LineProfiler(step, train)": _line_profiled(step, train),
        },
        rounds,
    )


def recordings(shape: Callable[[], Made], steps: int, rounds: int) -> dict[str, Timing]:
    """Return the timings of runs, recorded and not."""
    train = _training(steps)(shape()[0])
    variants = {"record()": _recorded(train), "record(ops=False)": _recorded(train, ops=False)}
    return in_turn({"plain": train, **variants}, rounds)


def stop_seconds(shape: Callable[[], Made], rounds: int = 3) -> tuple[float, int]:
    """Return the seconds that the end of a recording of 400 steps takes, and its events."""
    train = _training(LONG)(shape()[0])
    spent, events = [], 0
    for _ in range(rounds):
        recording = tensorlens.record().start()
        train()
        begun = perf_counter()
        recording.stop()
        spent.append(perf_counter() - begun)
        events = len(recording.events)
    return median(spent), events


def bytes_an_event(events: int = 400_000) -> float:
    """Return how much the process grows by each event that is kept."""
    empty, resident = torch.empty, psutil.Process().memory_info
    with tensorlens.record(limit=10 * events, names=False):
        before = resident().rss
        for _ in range(events // 2):
            empty(1)
        return float(resident().rss - before) / events


def beside_peers(shape: Callable[[], Made], rounds: int = 3) -> dict[str, Timing]:
    """Return the timings of runs of 40 steps with other profilers."""
    variants: dict[str, Work] = {"plain": _training(SHORT)(shape()[0])}
    for name, peer in peers.peers().items():
        step, model = shape()
        variants[name] = peer(step, _training(SHORT), model)
    with peers.quiet():
        return in_turn(variants, rounds)


Rows = dict[str, dict[str, list[float]]]
"""Name of a work to the shapes to its ratios, by number of threads."""


def measured() -> Rows:
    """Print every ratio, with one thread and with all, and return them."""
    print(f"\nan event takes {bytes_an_event():.1f} B while it is kept")
    rows: Rows = {}
    before = torch.get_num_threads()
    # recordings first: where lines are profiled, their end adds up backward for the tables
    for work in (_show_recordings, _show_lines, _show_peers):
        for threads in dict.fromkeys((1, os.cpu_count() or 1)):
            torch.set_num_threads(threads)
            for name, shape in SHAPES.items():
                torch.manual_seed(0)
                timings = work(f"{name}, {threads} thread{'s' * (threads > 1)}", shape)
                for title, timing in timings.items():
                    rows.setdefault(title, {}).setdefault(name, []).append(timing.ratio)
    torch.set_num_threads(before)
    return rows


def _show_recordings(title: str, shape: Callable[[], Made]) -> dict[str, Timing]:
    found = {}
    for steps, rounds in ((LONG, 15), (SHORT, 9)):
        timings = recordings(shape, steps, rounds)
        show(f"{title}: {steps} steps recorded, begin and end included, a step", timings, per=steps)
        found.update({f"`{name}`, {steps} steps": timings[name] for name in [*timings][1:]})
    seconds, events = stop_seconds(shape)
    print(f"  its end alone: {seconds:.3f} s for {events:,} events")
    return found


def _show_lines(title: str, shape: Callable[[], Made]) -> dict[str, Timing]:
    timings = lines(shape)
    show(f"{title}: lines of step and loop, a step", timings, per=SHORT)
    return {f"`{name}`": timings[name] for name in [*timings][1:]}


def _show_peers(title: str, shape: Callable[[], Made]) -> dict[str, Timing]:
    timings = beside_peers(shape)
    show(f"{title}: other profilers, a step", timings, per=SHORT)
    return {name: timings[name] for name in [*timings][1:]}


def write_table(page: Path, rows: Rows) -> None:
    """Put the ratios into a page, between its two marks."""
    head = ["", *SHAPES]
    cells = [
        [title, *(" / ".join(f"{ratio:.3g}" for ratio in found[name]) for name in SHAPES)]
        for title, found in rows.items()
    ]
    table = tabulate(cells, headers=head, tablefmt="github")
    about = (
        f"Python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} CPU cores; "
        f"one thread / {os.cpu_count()} threads."
    )
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    page.write_text(f"{before}{_BEGIN}\n{about}\n\n{table}\n{_END}{after}", encoding="utf-8")


_BEGIN, _END = "<!-- made by make bench -->", "<!-- end -->"


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}, {os.cpu_count()} cores")
    ratios = measured()
    for argument in sys.argv[1:]:
        write_table(Path(argument), ratios)
