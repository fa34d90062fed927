"""Estimates for host memory beside what the counting allocator hands out to the same programs.

`python -m tests.benchmarks.accuracy_cpu` prints both, and which kernels take memory for themselves
that no tensor has: on the CPU these are the gap, where the estimate does not run them on zeros.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from tabulate import tabulate
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tensorlens
from tensorlens import estimate, record
from tensorlens.planning.torch import cpu_scratch
from tensorlens.records import ALLOC, FREE, EventLog

STEPS = 3
Step = Callable[[], object]


def mlp() -> Step:
    """Adam, in place of whose foreach kernels the CPU has loops."""
    net = nn.Sequential(nn.Linear(100, 300), nn.Tanh(), nn.Linear(300, 10))
    optimizer = torch.optim.Adam(net.parameters())
    inputs, labels = torch.randn(64, 100), torch.randint(0, 10, (64,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()

    return step


def gpt() -> Step:
    """Two batches of bf16 autocast to a step."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 500}
    net = GPT2LMHeadModel(GPT2Config(**sizes)).train()
    optimizer = torch.optim.AdamW(net.parameters())
    tokens = torch.randint(0, 500, (4, 64))

    def step() -> None:
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(tokens, labels=tokens).loss / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _checkpointed(reentrant: bool) -> Step:
    layers = [nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)]
    net = nn.ModuleList(layers)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    inputs = torch.randn(32, 128, requires_grad=True)

    def step() -> None:
        x = inputs
        for layer in net:
            x = x + checkpoint(layer, x, use_reentrant=reentrant)
        x.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def checkpointed() -> Step:
    """Blocks whose forward runs again in backward."""
    return _checkpointed(reentrant=False)


def checkpointed_reentrant() -> Step:
    """The same by an autograd function that runs backward within backward."""
    return _checkpointed(reentrant=True)


def small_resnet() -> Step:
    """Convolutions, norms and a shortcut."""

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.norms = nn.ModuleList([nn.BatchNorm2d(width), nn.BatchNorm2d(width)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(self.norms[0](self.one(x)), inplace=True)
            return F.relu(self.norms[1](self.two(y)) + x)

    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        Block(16),
        nn.MaxPool2d(2),
        Block(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def lstm() -> Step:
    """Two layers over 20 moments."""
    net = nn.LSTM(32, 64, num_layers=2, batch_first=True)
    head = nn.Linear(64, 5)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
    inputs, targets = torch.randn(8, 20, 32), torch.randn(8, 5)

    def step() -> None:
        optimizer.zero_grad()
        outputs, _ = net(inputs)
        F.mse_loss(head(outputs[:, -1]), targets).backward()
        optimizer.step()

    return step


PROGRAMS = (mlp, gpt, checkpointed, checkpointed_reentrant, small_resnet, lstm)


@dataclass(frozen=True, slots=True)
class Side:
    """What one of both says of a program, bytes; the first of each is of the setup."""

    ends: list[int]
    """In use at the end of the setup and of each step."""
    peaks: list[int]
    requests: list[list[tuple[int, str]]]
    """Sizes asked for in order, each with its operator; estimated ones for results alone."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A program's estimate beside what was measured of it."""

    name: str
    estimated: Side
    measured: Side

    @property
    def own(self) -> list[list[tuple[int, str]]]:
        """What was asked for besides the estimated requests, in their order: kernels' own.

        Raises:
            ValueError: an estimated request was not made, or not in this order.
        """
        pairs = zip(self.estimated.requests, self.measured.requests, strict=True)
        return [list(_besides(fewer, all_)) for fewer, all_ in pairs]


def _besides(
    fewer: Sequence[tuple[int, str]], all_: Sequence[tuple[int, str]]
) -> Iterator[tuple[int, str]]:
    expected = iter(fewer)
    size = next(expected, None)
    for each in all_:
        if size is not None and each[0] == size[0]:
            size = next(expected, None)
        else:
            yield each
    if size is not None:
        raise ValueError(f"{size[0]} bytes of {size[1]} were estimated and not asked for")


def compare(program: Callable[..., Step], **arguments: str) -> Comparison:
    """Return what a program asks for as it was estimated, and as it was measured here."""
    answer = estimate(program, device="cpu", steps=STEPS, arguments=arguments)
    measured = measure(partial(program, **arguments))
    return Comparison(program.__name__, side(answer.recording.log), measured)


def measure(program: Callable[[], Step]) -> Side:
    """Run a program here and return what the allocator was asked for."""
    with record(names=False) as recording:
        step = program()
        for number in range(STEPS):
            recording.mark(f"step {number + 1}")
            step()
        recording.mark("end")
    return side(recording.log)


def side(log: EventLog) -> Side:
    """Return the figures of host memory in a log, from mark to mark."""
    number = log.devices.index("cpu")
    ends: list[int] = []
    peaks: list[int] = []
    requests: list[list[tuple[int, str]]] = []
    row = held = 0
    for mark in log.marks:
        most, asked = held, []
        while row < mark.row:
            if log.device[row] == number and not log.was_before(row):
                if log.kind[row] == ALLOC:
                    held += log.size[row]
                    operator = _operator(log, row)
                    if operator != cpu_scratch.HOST_KERNEL:
                        asked.append((log.size[row], operator))
                elif log.kind[row] == FREE and not log.was_before(log.pair[row]):
                    held -= log.size[row]
                most = max(most, held)
            row += 1
        ends.append(held)
        peaks.append(most)
        requests.append([each for each in asked if each[0]])
    return Side(ends, peaks, requests)


def _operator(log: EventLog, row: int) -> str:
    context: Any = log.contexts[log.context[row]] if log.context[row] >= 0 else None
    return str(context.op) if context is not None else "?"


def main() -> None:
    """Print both sides of each program."""
    found = []
    for program in PROGRAMS:
        comparison = compare(program)
        ours, truth = comparison.estimated, comparison.measured
        gap = max(truth.peaks) - max(ours.peaks)
        found.append(
            [
                *(comparison.name, max(ours.peaks), max(truth.peaks)),
                *(100 * gap / max(truth.peaks), ours.ends[-1], truth.ends[-1]),
            ]
        )
        try:
            own = Counter(each for step in comparison.own for each in step)
        except ValueError as error:
            print(f"{comparison.name}: {error}")
            continue
        print(f"{comparison.name}: {sum(own.values())} requests of kernels for themselves")
        for (nbytes, operator), count in sorted(own.items(), reverse=True)[:8]:
            print(f"  {nbytes:>12,} B  {count:>4} times  {operator}")
    headers = ("program", "peak estimated", "measured", "gap %", "end estimated", "measured")
    print(tabulate(found, headers=headers, floatfmt=".2f", intfmt=","))


if __name__ == "__main__":
    print(f"torch {torch.__version__}, tensorlens {tensorlens.__version__}")
    main()
