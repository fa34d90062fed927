"""A job run for real, and measured: its peaks, its losses, and what its loaders hold ahead."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing.process
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.host.counters import heap_now, status_sizes
from tensorlens.guards import reason
from tensorlens.heap import instances
from tensorlens.heap.attributes import MissingClass, content_of, imported
from tensorlens.planning.trials.global_settings import apply
from tensorlens.planning.trials.jobs import CannotApply, Job, Measured, Reason, Result, Trouble
from tensorlens.planning.trials.stage import Optioned
from tensorlens.planning.trials.steps import END, StepRunner, loss_of
from tensorlens.recording.present.instants import instants, request_text
from tensorlens.recording.present.remarks import culprits
from tensorlens.recording.record import LiveRecording, record
from tensorlens.records.queues import Queue
from tensorlens.render.figures import size
from tensorlens.render.view import View

_NO_LOSS = "step() returns no loss: a number, a tensor of one element, or a dict or object with one"
_PATIENCE, _MOMENT = 5.0, 0.01
"""Seconds that are waited for one more batch, and between two looks."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A framework's part in the running of a job."""

    seed: Callable[[], object]
    """Lets the framework's generators of random numbers begin with 0."""
    meter: Callable[[str | None], Meter]
    """Returns what measures from here on; takes the device whose figures are wanted."""
    optioned: Callable[[Job], Optioned]
    """Returns the program with its option around it."""
    when_stepped: Callable[[Callable[[], None]], Callable[[], None]]
    """Lets a function be called after each step of an optimizer; returns what ends that."""
    refusal: Callable[[BaseException, bool], str | None]
    """Returns what was asked for if an error is for want of memory, else None; takes whether the
    job has a limit."""
    limited: Callable[[int], AbstractContextManager[None]]
    """Lets the program have so many bytes from here on."""
    rehearses: Callable[[], bool]
    """Tells whether one small step comes before a limit, for what libraries load."""
    cleared: Callable[[], object] = lambda: None
    """Leaves nothing of the rehearsal."""


def run_job(job: Job, bench: Bench) -> Result:
    """Run a job and return what it came to."""
    _seed(bench)
    settings = job.program.global_settings or {}
    apply(settings)
    if job.limit is not None and bench.rehearses():
        _rehearse(job, bench)
        apply(settings)
    meter = bench.meter(job.device)
    losses: list[float | None] = []
    optioned = bench.optioned(job)
    made: list[Any] = []
    """The step, which keeps its loaders until they were looked at."""

    def call(step: Callable[[], Any]) -> None:
        losses.append(loss_of(step()))
        meter.wait()

    def begin() -> Any:
        made.append(optioned.begin())
        return made[0]

    wanted = job.warmup + job.steps
    explained = _RecordedStep(meter, wanted) if job.explains and job.limit is None else None
    if explained is not None:
        steps = StepRunner(wanted + 1, explained, explained.done, bench.when_stepped)
    else:
        # a message for each step would be work for a processor that the next one needs
        steps = StepRunner(wanted, meter, lambda done: None, bench.when_stepped)
    try:
        with nullcontext() if job.limit is None else bench.limited(job.limit):
            steps.run(job.program, begin, call)
    except BaseException as error:
        # data may be too short for the step more: the figures are known by then
        is_of_more = explained is not None and explained.figures is not None
        if not (is_of_more and isinstance(error, Exception)):
            text = bench.refusal(error, job.limit is not None)
            if text is None:
                raise
            return Trouble(Reason.OUT_OF_MEMORY, text)
    optioned.finished()
    figures = explained.figures if explained and explained.figures else meter.figures()
    ahead, why = held_ahead()
    missing = {**figures.missing, **({"held_ahead": why} if why else {})}
    known = [loss for loss in losses[:wanted] if loss is not None]
    if not known or len(known) < len(losses[:wanted]):
        missing["losses"] = _NO_LOSS
    return replace(
        figures,
        seconds=tuple(steps.seconds[job.warmup : wanted]),
        losses=None if "losses" in missing else tuple(known),
        held_ahead=ahead,
        step_peaks=figures.step_peaks[job.warmup :],
        notes=tuple(optioned.stage.notes),
        at_peak=explained.at_peak() if explained else {},
        missing=missing,
    )


def _rehearse(job: Job, bench: Bench) -> None:
    """Run one small step and leave nothing of it, so that libraries are loaded and threads run."""
    # a program may refuse so small a batch: what else is wrong with it shows in the run itself
    with contextlib.suppress(Exception):
        step = bench.optioned(replace(job, batch=job.rehearsal)).begin()
        if step is not None:
            step()
        del step
    bench.cleared()
    gc.collect()


def _seed(bench: Bench) -> None:
    """Let every option begin with the same random numbers; the program may seed its own."""
    random.seed(0)
    bench.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


class Meter:
    """Takes the marks of steps, and reads the peaks.

    Args:
        counter: the CPU's.
        device: whose figures are wanted; None: the accelerator with the highest peak, or the CPU
            where none is used.
    """

    def __init__(self, counter: Counter, device: str | None) -> None:
        self._device = "cuda:0" if device == "cuda" else device
        self._counter = counter
        self._read = counter.reader()
        self._before = self._read()[0]
        self._setup: dict[str, int] = {}
        self._first_step = 0
        self._peaks: list[int] = []
        """Of the CPU, from mark to mark; those from ``_first_step`` on are of steps."""

    def wait(self) -> None:
        """Return when devices have done all that they were asked to."""
        raise NotImplementedError

    def mark(self, name: str, row: int | None = None) -> None:
        """Note the peak so far, and of the first step what is there when it begins."""
        self.wait()
        allocated, peak, _ = self._read()
        self._peaks.append(peak - self._before)
        of_devices = self._device_bytes()
        if name == "step 1":
            self._setup = {"cpu": allocated - self._before, **of_devices}
            self._first_step = len(self._peaks)

    def forget_marks(self) -> None:
        """Begin anew: what ran before were no steps."""
        self._setup = {}

    def figures(self) -> Measured:
        """Return the peaks.

        Raises:
            TensorlensError: the device was not used.
        """
        peaks = {name: peak for name, peak in self._device_peaks().items() if peak}
        device = self._device or max(peaks, key=peaks.__getitem__, default="cpu")
        setup = self._setup.get(device, 0)
        if device != "cpu":
            return self._device_figures(device, setup)
        missing = dict(self._counter.missing)
        resident = status_sizes().get("VmHWM")
        if resident is None:
            missing["peak_reserved"] = "this system does not tell the peak of the resident set"
        peak = max(self._peaks, default=0)
        return Measured(device, peak, resident, setup, (), None, missing=missing)

    def _device_bytes(self) -> dict[str, int]:
        """Return the bytes handed out on each accelerator now."""
        raise NotImplementedError

    def _device_peaks(self) -> dict[str, int]:
        """Return the highest of them until the last mark."""
        raise NotImplementedError

    def _device_figures(self, device: str, setup: int) -> Measured:
        raise NotImplementedError


class _RecordedStep:
    """One step more, recorded by itself, for what has most of the peak; no figure is of it.

    It takes the marks for a meter, which hears of none from that step on.
    """

    def __init__(self, meter: Meter, steps: int) -> None:
        self._meter = meter
        self._steps = steps
        self._recording: LiveRecording | None = None
        self._is_done = False
        self.figures: Measured | None = None
        """Those of the steps before it; None where the program ended before."""

    def mark(self, name: str, row: int | None = None) -> None:
        """Pass a mark on, or begin to record."""
        if name == f"step {self._steps + 1}":
            self._meter.mark(END)
            self.figures = self._meter.figures()
            self._recording = record().start()
        elif self._recording is None:
            self._meter.mark(name, row)

    def forget_marks(self) -> None:
        """Begin anew: what ran before were no steps."""
        self.done(self._steps + 1)
        self._recording, self._is_done, self.figures = None, False, None
        self._meter.forget_marks()

    def done(self, count: int) -> None:
        """End what is recorded after the last step."""
        if self._recording is not None and count > self._steps:
            self._recording.stop()
            self._is_done = True

    def at_peak(self) -> Mapping[str, str]:
        """Return the step's peak and its moment, and the line and tensors that have most of it.

        It is empty where the program ended before.
        """
        if self.figures is None or self._recording is None or not self._is_done:
            return {}
        recording, device = self._recording.stop().without_source(), self.figures.device
        if device not in recording.devices or not recording.peak(device).bytes:
            return {}
        (shown,) = instants(recording, View(devices=(device,)))
        where = request_text(recording, shown.moment)
        parts = (size(shown.moment.bytes), where, "(one more step, recorded by itself)")
        return {"peak": " ".join(filter(None, parts)), **dict(culprits(shown))}


def held_ahead() -> tuple[int | None, str]:
    """Return the bytes that torch's DataLoaders with workers hold when their queues are full.

    It waits until they are, as long as batches come. Else why they are not known; empty where no
    loader has workers.
    """
    kind = imported("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
    if kind is MissingClass or not content_of(multiprocessing.process).get("_children"):
        return None, ""
    try:
        queues = _settled(instances(kind))
    except Exception as error:
        # the trial has its other figures, whatever is strange about its loaders
        return None, f"a loader could not be looked at: {reason(error)}"
    if not all(map(_is_full, queues)):
        return None, f"workers made no batch for {_PATIENCE:g} s after the last step"
    for each in queues:
        if each.nbytes is None:
            return None, each.missing.get("nbytes", "")
        if each.batches != each.max_batches:
            return None, "after the last step a loader had fewer batches left than it holds"
    known = [each.nbytes or 0 for each in queues if each.max_batches]
    return sum(known) if known else None, ""


def _settled(iterators: Sequence[Any]) -> Sequence[Queue]:
    """Return the queues once they are full, or no more comes."""
    from tensorlens.frameworks.torch.loaders import look_at_iterator

    end, before = 0.0, None
    while True:
        queues = [look_at_iterator(each) for each in iterators]
        batches = [each.batches for each in queues]
        if batches != before:
            end, before = time.monotonic() + _PATIENCE, batches
        if all(map(_is_full, queues)) or time.monotonic() >= end:
            return queues
        time.sleep(_MOMENT)


def _is_full(queue: Queue) -> bool:
    """Tell whether nothing more is to come; where that cannot be known there is no use waiting."""
    from tensorlens.frameworks.torch.loaders import ON_THEIR_WAY

    return not queue.in_work and not queue.waiting and ON_THEIR_WAY not in queue.notes


@contextlib.contextmanager
def host_limited(nbytes: int) -> Iterator[None]:
    """Let the process have so many bytes more than it has mapped and uses now.

    That is ``RLIMIT_DATA``, by which Linux 4.7 and later count private mappings. What the C
    library keeps free goes back to the system before, or counts as part of those bytes.

    Raises:
        CannotApply: this system sets no such limit.
    """
    try:
        import resource

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        mapped = status_sizes().get("VmData")
    except ImportError:
        mapped = None
    if mapped is None:
        raise CannotApply("this system cannot limit a process's memory: it needs Linux's /proc")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    heap = heap_now()
    wanted = mapped + nbytes - (0 if heap is None else heap[1])
    hard = before[1]
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
