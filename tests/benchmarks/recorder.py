"""Training steps on the CPU with every allocation recorded, with its stack alone, and without."""

from collections.abc import Callable

import psutil
import torch
from torch import nn

from tensorlens.frameworks.torch.native import install
from tensorlens.frameworks.torch.recorder.cpu import TorchRecorder
from tensorlens.recording.record import record
from tests.benchmarks.side_by_side import Timing, Work, in_turn
from tests.benchmarks.step import batch_of_two_milliseconds, training

EVENTS = 400_000
LIMIT = 10 * EVENTS


def steps(rounds: int = 40) -> dict[str, Timing]:
    """Return the timings of the 2 ms training loop, plain, with stacks, and with everything."""
    return _side_by_side(training(lambda function: function, batch_of_two_milliseconds()), rounds)


def large_steps(rounds: int = 15) -> dict[str, Timing]:
    """Return the timings of a GPT-sized step of some 100 ms."""
    return _side_by_side(_transformer(), rounds)


def begin_and_end(rounds: int = 10) -> dict[str, Timing]:
    """Return the timings of recording one allocation, and of naming what is found besides."""

    def one(names: bool) -> Work:
        def work() -> None:
            with record(names=names):
                torch.empty(1)

        return work

    return in_turn({"without names": one(False), "with names": one(True)}, rounds)


def bytes_an_event() -> float:
    """Return how much the process grows by each event that is kept."""
    empty, resident = torch.empty, psutil.Process().memory_info
    with record(limit=LIMIT, names=False):
        before = resident().rss
        for _ in range(EVENTS // 2):
            empty(1)
        return float(resident().rss - before) / EVENTS


def _side_by_side(work: Callable[[], object], rounds: int) -> dict[str, Timing]:
    variants: dict[str, Work] = {"plain": work}
    recorder = TorchRecorder(install()[0])
    for name, ops in (("stacks alone", False), ("everything", True)):
        variants[name] = _recorded(recorder, ops, work)
    return in_turn(variants, rounds)


def _recorded(recorder: TorchRecorder, ops: bool, work: Callable[[], object]) -> Work:
    def recorded() -> None:
        span = recorder.begin(LIMIT, ops)
        work()
        recorder.read(span, True)

    return recorded


def _transformer() -> Callable[[], object]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    head = nn.Linear(256, 1000)
    optimizer = torch.optim.AdamW([*net.parameters(), *head.parameters()])
    tokens, labels = torch.randn(4, 64, 256), torch.randint(0, 1000, (4 * 64,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(head(net(tokens)).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
