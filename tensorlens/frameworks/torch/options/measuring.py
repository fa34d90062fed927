"""A trial run for real: its steps, their peaks, their time and their losses."""

from __future__ import annotations

import gc
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from tensorlens.frameworks.torch.failures import failed_request
from tensorlens.frameworks.torch.fake.steps import Steps
from tensorlens.frameworks.torch.fake.tracker import Tracker
from tensorlens.frameworks.torch.options.limits import give_back_heap, limited
from tensorlens.frameworks.torch.options.losses import loss_of
from tensorlens.frameworks.torch.options.program import Optioned
from tensorlens.frameworks.trials import OUT_OF_MEMORY, Measured, Result, Trial, Trouble

_RESIDENT = re.compile(r"VmHWM:\s*(\d+) kB")
_NO_LOSS = "step() returns no loss: a number, a tensor of one element, or a dict or object with one"


def run(trial: Trial, tell: Callable[[int], None]) -> Result:
    """Run a trial and return what it came to.

    Args:
        trial: what to run.
        tell: called with the number of steps done.

    Raises:
        CannotApply: the option cannot work here.
    """
    if trial.limit is not None:
        _rehearse(trial)
    _seed()
    meter = Meter(trial.device)
    losses: list[float | None] = []
    optioned = Optioned(trial.program, trial.choice, trial.batch, estimated=False)

    def call(step: Callable[[], Any]) -> None:
        losses.append(loss_of(step()))
        meter.wait()

    steps = Steps(trial.warmup + trial.steps, cast(Tracker, meter), tell)
    try:
        with limited(trial.limit):
            steps.run(trial.program, optioned.begin, call)
    except BaseException as error:
        request = failed_request(error)
        if request is None:
            raise
        return Trouble(OUT_OF_MEMORY, request.text)
    optioned.finished()
    known = [loss for loss in losses if loss is not None]
    figures = meter.figures()
    missing = dict(figures.missing)
    has_losses = bool(known) and len(known) == len(losses)
    if not has_losses:
        missing["losses"] = _NO_LOSS
    return Measured(
        device=figures.device,
        peak_allocated=figures.peak_allocated,
        peak_reserved=figures.peak_reserved,
        setup_allocated=figures.setup_allocated,
        seconds=tuple(steps.seconds[trial.warmup :]),
        losses=tuple(known) if has_losses else None,
        notes=tuple(optioned.stage.notes),
        missing=missing,
    )


def _rehearse(trial: Trial) -> None:
    """Run one small step and leave nothing of it, so that libraries are loaded and threads run."""
    if trial.rehearsal is None or torch.cuda.is_available():
        return
    optioned = Optioned(trial.program, trial.choice, trial.rehearsal, estimated=False)
    step = optioned.begin()
    if step is not None:
        step()
    del step, optioned
    gc.collect()
    give_back_heap()


def _seed() -> None:
    """Let every option begin with the same random numbers; the program may seed its own."""
    random.seed(0)
    torch.manual_seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


class Meter:
    """Takes the marks of steps, and reads the peaks.

    Args:
        device: whose; None: the CUDA device with the highest peak, or the CPU where none is used.
    """

    def __init__(self, device: str | None) -> None:
        from tensorlens.frameworks.torch.cpu import cpu_counter

        self._device = device
        self._counter = cpu_counter()
        self._read = self._counter.reader()
        self._before = self._read()[0]
        self._peak = 0
        self._setup: dict[str, int] = {}

    def mark(self, name: str, row: int | None = None) -> None:
        """Note the peak so far, and of the first step what is there when it begins."""
        self.wait()
        allocated, peak, _ = self._read()
        self._peak = max(self._peak, peak - self._before)
        if name == "step 1":
            self._setup = {"cpu": allocated - self._before}
            for number in _cuda_devices():
                self._setup[f"cuda:{number}"] = torch.cuda.memory_allocated(number)

    def forget_marks(self) -> None:
        """Begin anew: what ran before were no steps."""
        self._setup = {}

    def wait(self) -> None:
        """Return when devices have done all that they were asked to."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def figures(self) -> Measured:
        """Return the peaks.

        Raises:
            TensorlensError: the device was not used.
        """
        device = self._device or self._most_used()
        setup = self._setup.get(device, 0)
        if device == "cpu":
            missing = dict(self._counter.missing)
            resident = _peak_resident()
            if resident is None:
                missing["peak_reserved"] = "this system does not tell the peak of the resident set"
            return Measured(device, self._peak, resident, setup, (), None, missing=missing)
        number = torch.device(device).index or 0
        allocated = torch.cuda.max_memory_allocated(number)
        return Measured(device, allocated, torch.cuda.max_memory_reserved(number), setup, (), None)

    def _most_used(self) -> str:
        peaks = {f"cuda:{each}": torch.cuda.max_memory_allocated(each) for each in _cuda_devices()}
        peaks = {name: peak for name, peak in peaks.items() if peak}
        return max(peaks, key=peaks.__getitem__, default="cpu")


def _cuda_devices() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)


def _peak_resident() -> int | None:
    try:
        match = _RESIDENT.search(Path("/proc/self/status").read_text())
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024
