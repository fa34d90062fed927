"""A million events: load, peak and by line, and what else a report asks; seconds and MiB."""

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from tensorlens import Recording, load
from tensorlens.records import ALLOC, FREE, START, Context, EventLog, Frame, Label, Mark, Origin

EVENTS = 1_000_000
LAYERS = 48
_TORCH = "/usr/lib/python3/site-packages/torch"
_CALL = Frame(f"{_TORCH}/nn/modules/module.py", 1787, "Module._call_impl", False)
_ENGINE = Frame(f"{_TORCH}/autograd/graph.py", 869, "_engine_run_backward", False)
_STEP = Frame(f"{_TORCH}/optim/optimizer.py", 516, "Optimizer.profile_hook_step.wrapper", False)
_OPERATORS = ("addmm", "native_layer_norm", "gelu", "bmm", "_softmax", "native_dropout")


class _Training:
    """Steps of a model whose layers keep activations, with scratch memory and an optimizer."""

    def __init__(self, seed: int) -> None:
        self.log = EventLog()
        self.random = Random(seed)
        self.now = 0
        self.free_addresses: list[int] = []
        self.next_address = 0x7F00_0000_0000
        self.main = self.log.stacks.push(-1, Frame("/home/me/train.py", 88, "main"))
        for layer in range(LAYERS):
            row = self.log.append(START, "cpu", self.address(), 4 << 20, 0)
            weight = Label(f"layers.{layer}.weight", "parameter", "float32", (1024, 1024))
            self.log.name(row, weight)
        self.slots: list[int] = []

    def address(self) -> int:
        if self.free_addresses and self.random.random() < 0.9:
            return self.free_addresses.pop(self.random.randrange(len(self.free_addresses)))
        self.next_address += 1 << 12
        return self.next_address

    def take(self, size: int, stack: int, context: Context) -> int:
        self.now += self.random.randrange(300, 9000)
        return self.log.append(ALLOC, "cpu", self.address(), size, self.now, stack, context)

    def give(self, row: int, stack: int, context: Context) -> None:
        self.now += self.random.randrange(100, 3000)
        address, size = self.log.address[row], self.log.size[row]
        self.log.append(FREE, "cpu", address, size, self.now, stack, context)
        self.free_addresses.append(address)

    def scratch(self, stack: int, context: Context) -> None:
        rows = [self.take(self.random.randrange(1, 1 << 16), stack, context) for _ in range(2)]
        for row in rows:
            self.give(row, stack, context)

    def step(self) -> None:
        push, main = self.log.stacks.push, self.main
        kept: list[tuple[int, int, str]] = []
        for layer in range(LAYERS):
            outer = push(main, _CALL, f"layers.{layer}")
            for line, operator in enumerate(_OPERATORS):
                stack = push(outer, Frame("/home/me/model.py", 20 + line, "Block.forward"))
                stack = push(stack, Frame(f"{_TORCH}/nn/functional.py", 90 + line, "call", False))
                context = Context(op=f"aten::{operator}", grad=True)
                kept.append(
                    (self.take(1 << self.random.randrange(9, 21), stack, context), stack, operator)
                )
                self.scratch(stack, context)
        backward = push(push(main, Frame("/home/me/train.py", 31, "step")), _ENGINE)
        gradients = []
        for row, stack, operator in reversed(kept):
            node = Context(op="aten::mul", node=f"{operator.title()}Backward0", forward=stack)
            passed = self.take(1 << self.random.randrange(9, 21), backward, node)
            self.scratch(backward, node)
            self.give(row, backward, node)
            if operator == "addmm":
                gradients.append(passed)
            else:
                self.give(passed, backward, Context(node="AccumulateGrad"))
        optimizer = push(push(main, Frame("/home/me/train.py", 32, "step")), _STEP)
        for _ in range(LAYERS):
            self.scratch(optimizer, Context(op="aten::_foreach_addcdiv_"))
            if len(self.slots) < 2 * LAYERS:
                zeros = Context(op="aten::zeros_like")
                self.slots.append(self.take(4 << 20, optimizer, zeros))
        for row in gradients:
            self.give(row, main, Context())


def training_log(events: int, seed: int = 0) -> EventLog:
    """Return the log of whole training steps with at least so many events."""
    training = _Training(seed)
    while len(training.log) < events:
        training.step()
        training.log.marks.append(Mark("step", len(training.log), training.now))
    return training.log


def show_all() -> None:
    """Print what each question takes of a recording just loaded."""
    with tempfile.TemporaryDirectory() as folder:
        plain, packed = Path(folder) / "run.tlens", Path(folder) / "run.tlens.gz"
        _save(plain, packed)
        _timed("load run.tlens.gz", lambda: load(packed))
        loaded = _timed("load run.tlens", lambda: load(plain))
    _timed("peak, by line", lambda: loaded.peak().by_line)
    for question in (loaded.timeline, loaded.backward, loaded.growth, loaded.churn):
        _timed(question.__name__, question)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"  resident at most {peak / (2**20 if sys.platform == 'darwin' else 2**10):.0f} MiB")


def _save(*files: Path) -> None:
    recording = Recording(training_log(EVENTS), Origin(source={"cpu": "made up"}))
    print(f"\nrecording of {len(recording.log):,} events")
    for file in files:
        _timed(f"save {file.name}", partial(recording.save, file))
        print(f"  {'':24} {file.stat().st_size / 2**20:8.2f} MiB")


def _timed(what: str, work: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    answer = work()
    print(f"  {what:24} {time.perf_counter() - begun:8.2f} s")
    return answer


if __name__ == "__main__":
    show_all()
