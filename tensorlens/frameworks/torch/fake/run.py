"""One run of a program on fake tensors, from its job to its trace."""

from __future__ import annotations

import contextlib
import linecache
import platform
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.frameworks.code import is_foreign
from tensorlens.frameworks.torch.fake.inputs import name_inputs
from tensorlens.frameworks.torch.fake.jobs import Job
from tensorlens.frameworks.torch.fake.names import BlockNames
from tensorlens.frameworks.torch.fake.setup import Readiness, measure_with
from tensorlens.frameworks.torch.fake.stacks import ProgramStacks
from tensorlens.frameworks.torch.fake.steps import Steps, beginning
from tensorlens.frameworks.torch.fake.tracker import Tracker, noting_nodes
from tensorlens.frameworks.torch.recorder.logs import sources_of
from tensorlens.records.tensors import SourceLine
from tensorlens.records.traces import Caution, Trace


def run(job: Job, readiness: Readiness, tell: Callable[[int], None]) -> Trace:
    """Run a job and return what it asked of allocators.

    A program that never uses the device is run again with the device as torch's default one.

    Args:
        job: what to run.
        readiness: of the CUDA device that is not there.
        tell: called with the number of steps done.
    """
    trace = _run(job, readiness, tell, None)
    if job.device != "cpu" and not any(name.startswith(job.device) for name in trace.log.devices):
        trace = _run(job, readiness, tell, job.device)
        trace.cautions.insert(
            0,
            Caution(
                f"the program puts nothing on {job.device}: it was run with "
                f'torch.set_default_device("{job.device}")'
            ),
        )
    return trace


def _run(job: Job, readiness: Readiness, tell: Callable[[int], None], default: str | None) -> Trace:
    trace = Trace(versions={"torch": str(torch.__version__), "python": platform.python_version()})
    stacks = ProgramStacks(trace.log.stacks)
    cautions = _Cautions()
    tracker = Tracker(trace, stacks)
    steps = Steps(job.steps, tracker, tell)
    with contextlib.ExitStack() as stage:
        enter = stage.enter_context
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        enter(stacks)
        enter(noting_nodes(stacks))
        enter(tracker)
        enter(_defaults(default))
        names = enter(contextlib.closing(BlockNames(tracker)))
        measure_with(TraceMeter(tracker))
        program = job.program
        steps.run(
            program,
            lambda: stacks.call_program(beginning, program, job.positional, job.options),
            stacks.call_program,
        )
        names.look()
    name_inputs(trace.log, tracker.brought)
    trace.seconds = tuple(steps.seconds)
    trace.cautions = cautions.found
    trace.log.sources = sources_of(trace.log, linecache.getlines)
    return trace


class TraceMeter:
    """Answers with what is in a trace so far; what the allocator caches is not in it."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def allocated(self, device: int) -> int:
        """Return what is handed out now."""
        return self._tracker.allocated.get(f"cuda:{device}", 0)

    def peak_allocated(self, device: int) -> int:
        """Return the most since the last reset."""
        return self._tracker.peaks.get(f"cuda:{device}", 0)

    reserved, peak_reserved = allocated, peak_allocated

    def reset_peak(self, device: int) -> None:
        """Begin a new peak."""
        self._tracker.reset_peak(f"cuda:{device}")

    def empty_cache(self) -> None:
        """Note that cached memory is given back."""
        for device in [*self._tracker.allocated]:
            self._tracker.empty_cache(device)


class _Cautions:
    """What was assumed, once for each line of the program."""

    def __init__(self) -> None:
        self.found: list[Caution] = []
        self._seen: set[tuple[str, SourceLine | None]] = set()

    def __call__(self, text: str) -> None:
        line = _line_of_program(sys._getframe(1))
        if (text, line) not in self._seen:
            self._seen.add((text, line))
            self.found.append(Caution(text, line))


def _line_of_program(frame: FrameType | None) -> SourceLine | None:
    while frame is not None:
        code = frame.f_code
        if not is_foreign(code.co_filename):
            return SourceLine(code.co_filename, frame.f_lineno or 0, code.co_qualname)
        frame = frame.f_back
    return None


@contextlib.contextmanager
def _defaults(device: str | None) -> Iterator[None]:
    """Let what a program sets for its whole process end with it."""
    dtype, grad = torch.get_default_dtype(), torch.is_grad_enabled()
    if device is not None:
        torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
