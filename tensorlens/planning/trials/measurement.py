"""A job run for real: under a limit or none, its peaks, times, losses, and what loaders hold."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing.process
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tensorlens.frameworks.host.process import heap_now
from tensorlens.heap import instances
from tensorlens.heap.attributes import Never, content_of, imported
from tensorlens.planning.trials.caller import restore
from tensorlens.planning.trials.jobs import CannotApply, Job, Measured, Reason, Result, Trouble
from tensorlens.planning.trials.stage import Optioned
from tensorlens.planning.trials.steps import Followed, Marks, Steps
from tensorlens.records.queues import Queue

_NO_LOSS = "step() returns no loss: a number, a tensor of one element, or a dict or object with one"


class Meter(Marks, Protocol):
    """Takes the marks of steps, and reads the peaks."""

    def wait(self) -> None:
        """Return when devices have done all that they were asked to."""

    def figures(self) -> Measured:
        """Return the peaks."""


class Bench(Protocol):
    """A framework's part in the running of a job."""

    def seed(self) -> None:
        """Let the framework's generators of random numbers begin with 0."""

    def meter(self, device: str | None) -> Meter:
        """Return what measures from here on; ``device``: whose figures are wanted."""

    def optioned(self, job: Job) -> Optioned:
        """Return the program with its option around it."""

    def follow(self, act: Callable[[], None]) -> Followed:
        """Call ``act`` after each step of an optimizer."""

    def number(self, tensor: Any) -> float | None:
        """Return the number in a tensor; raise NotATensor for what is none."""

    def refusal(self, error: BaseException, *, limited: bool) -> str | None:
        """Return what was asked for if the error is for want of memory, else None."""

    def limited(self, nbytes: int | None) -> AbstractContextManager[None]:
        """Let the program have so many bytes from here on; None: as many as there are."""

    def rehearses(self) -> bool:
        """Tell whether one small step comes before a limit, for what libraries load."""

    def cleared(self) -> None:
        """Leave nothing of the rehearsal."""


def run_job(job: Job, bench: Bench) -> Result:
    """Run a job and return what it came to.

    Raises:
        CannotApply: the option cannot work here.
    """
    _seed(bench)
    restore(job.program.caller, job.program.carried)
    if job.limit is not None and job.rehearsal is not None and bench.rehearses():
        _rehearse(job, bench)
        restore(job.program.caller)
    meter = bench.meter(job.device)
    losses: list[float | None] = []
    optioned = bench.optioned(job)

    def call(step: Callable[[], Any]) -> None:
        losses.append(loss_of(step(), bench.number))
        meter.wait()

    made: list[Any] = []
    """The step, which keeps its loaders until they were looked at."""

    def begin() -> Any:
        made.append(optioned.begin())
        return made[0]

    steps = Steps(job.warmup + job.steps, meter, _nobody, bench.follow)
    try:
        with bench.limited(job.limit):
            steps.run(job.program, begin, call)
    except BaseException as error:
        text = bench.refusal(error, limited=job.limit is not None)
        if text is None:
            raise
        return Trouble(Reason.OUT_OF_MEMORY, text)
    optioned.finished()
    ahead = held_ahead()
    known = [loss for loss in losses if loss is not None]
    has_losses = bool(known) and len(known) == len(losses)
    figures = meter.figures()
    missing = dict(figures.missing)
    missing |= {} if has_losses else {"losses": _NO_LOSS}
    missing |= {"held_ahead": ahead.missing} if ahead.missing else {}
    return replace(
        figures,
        seconds=tuple(steps.seconds[job.warmup :]),
        losses=tuple(known) if has_losses else None,
        held_ahead=ahead.nbytes,
        step_peaks=figures.step_peaks[job.warmup :],
        notes=tuple(optioned.stage.notes),
        missing=missing,
    )


def _nobody(done: int) -> None:
    """Tell of steps done: a message for each would be work for a processor that the next needs."""


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


class NotATensor(Exception):
    """Said of a value that is no tensor of the framework's."""


def loss_of(value: Any, of_tensor: Callable[[Any], float | None]) -> float | None:
    """Return the loss that ``step()`` returned, or None where there is none to see.

    It is a number or a tensor of one element, the ``loss`` of a mapping or an object, or the first
    item of a tuple or a list.

    Args:
        value: what was returned.
        of_tensor: gives the number in a tensor, or None where there is none; raises
            :class:`NotATensor` for anything else.
    """
    try:
        return _loss_of(value, of_tensor)
    except Exception:
        # what a program returns is its own matter
        return None


def _loss_of(value: Any, of_tensor: Callable[[Any], float | None]) -> float | None:
    try:
        return of_tensor(value)
    except NotATensor:
        pass
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Mapping):
        return _loss_of(value["loss"], of_tensor) if "loss" in value else None
    if hasattr(value, "loss"):
        return _loss_of(value.loss, of_tensor)
    if isinstance(value, tuple | list) and value:
        return _loss_of(value[0], of_tensor)
    if type(value).__module__ == "numpy" and getattr(value, "size", 0) == 1:
        return float(value)
    return None


_DATA = re.compile(r"VmData:\s*(\d+) kB")
_RESIDENT = re.compile(r"VmHWM:\s*(\d+) kB")


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

        _give_back_heap()
        mapped = _status(_DATA)
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


def _give_back_heap() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak_resident() -> int | None:
    """Return the highest resident set of this process, in bytes; None where it is not told."""
    return _status(_RESIDENT)


def _status(figure: re.Pattern[str]) -> int | None:
    try:
        match = figure.search(Path("/proc/self/status").read_text())
    except OSError:
        return None
    return None if match is None else int(match[1]) * 1024


_PATIENCE, _MOMENT = 5.0, 0.01
"""Seconds that are waited for one more batch, and between two looks."""


@dataclass(frozen=True, slots=True)
class HeldAhead:
    """Bytes that loaders hold ahead."""

    nbytes: int | None
    missing: str = ""
    """Why it is None; empty where no loader has workers."""


def held_ahead() -> HeldAhead:
    """Return the bytes that torch's DataLoaders with workers hold when their queues are full.

    It waits until they are, as long as batches come.
    """
    kind = imported("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter")
    if kind is Never or not content_of(multiprocessing.process).get("_children"):
        return HeldAhead(None)
    try:
        queues = _settled(instances(kind))
    except Exception as error:
        # the trial has its other figures, whatever is strange about its loaders
        return HeldAhead(None, f"a loader could not be looked at: {type(error).__name__}: {error}")
    if not all(map(_is_full, queues)):
        return HeldAhead(None, f"workers made no batch for {_PATIENCE:g} s after the last step")
    for each in queues:
        if each.nbytes is None:
            return HeldAhead(None, each.missing.get("nbytes", ""))
        if each.batches != each.max_batches:
            why = "after the last step a loader had fewer batches left than it holds"
            return HeldAhead(None, why)
    known = [each.nbytes or 0 for each in queues if each.max_batches]
    return HeldAhead(sum(known) if known else None)


def _settled(iterators: Sequence[Any]) -> Sequence[Queue]:
    """Return the queues once they are full, or no more comes."""
    from tensorlens.frameworks.torch.loaders.queue import look_at_iterator

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
    from tensorlens.frameworks.torch.loaders.queue import ON_THEIR_WAY

    return not queue.in_work and not queue.waiting and ON_THEIR_WAY not in queue.notes
