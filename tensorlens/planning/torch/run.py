"""Runs of programs on fake tensors, each from its job to its trace."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.errors import UsageError
from tensorlens.frameworks.torch.optimizer_steps import when_stepped
from tensorlens.planning.tensorflow.keras_training import (
    SAMPLES,
    ended_at_training,
    training_patches,
)
from tensorlens.planning.torch.device.stand_in import measure_with
from tensorlens.planning.torch.distributed import distributed
from tensorlens.planning.torch.memory.cpu_scratch import CpuScratch
from tensorlens.planning.torch.memory.cuda_scratch import CudaScratch
from tensorlens.planning.torch.memory.kernels import ScratchRule
from tensorlens.planning.torch.names import BlockNames
from tensorlens.planning.torch.operators.accumulation import accumulation
from tensorlens.planning.torch.operators.answers import value_patches
from tensorlens.planning.torch.operators.attention import fused_attention
from tensorlens.planning.torch.options.program import program_with_options
from tensorlens.planning.torch.patches import program_patches
from tensorlens.planning.torch.stacks import ProgramStacks, node_stacks
from tensorlens.planning.torch.tracker import Tracker
from tensorlens.planning.trace import Caution, Cautions, Trace, caution, caution_scope
from tensorlens.planning.trials.global_settings import SEED, apply
from tensorlens.planning.trials.jobs import Job
from tensorlens.planning.trials.step_runner import StepRunner
from tensorlens.records.logs.stacks import source_lines


def run(job: Job, tell: Callable[[int], None]) -> Trace:
    """Run a job and return its trace; ``tell`` is called with the number of finished steps.

    A program that never uses the device is run again with the device as torch's default one.
    """
    trace = _run(job, tell)
    if job.card is None or any(name.startswith("cuda") for name in trace.log.devices):
        return trace
    try:
        trace = _run(job, tell, on_cuda=True)
    except (RuntimeError, TypeError) as error:
        # a function may use tensors from outside of it; a file runs again as a whole
        if job.program.parcel is None and "device" in str(error):
            raise UsageError(_NOTHING_ON_CUDA) from error
        raise
    text = 'the program puts nothing on cuda: it was run with torch.set_default_device("cuda")'
    trace.cautions.insert(0, Caution(text))
    return trace


def _run(job: Job, tell: Callable[[int], None], *, on_cuda: bool = False) -> Trace:
    """Run a job; ``on_cuda`` makes cuda torch's default device and refuses training elsewhere."""
    trace = Trace(versions={"torch": str(torch.__version__), "python": platform.python_version()})
    stacks = ProgramStacks(trace.log.stacks)
    cautions = Cautions()
    with contextlib.ExitStack() as exit_stack:
        enter = exit_stack.enter_context
        enter(caution_scope(cautions))
        # restore what the program sets for the whole process
        exit_stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        enter(torch.set_grad_enabled(torch.is_grad_enabled()))
        wanted = job.program.global_settings or {}
        # no numbers are drawn without data
        wanted = {name: value for name, value in wanted.items() if name != SEED}
        exit_stack.callback(apply, apply(wanted))
        scratch_rule = _enter_device(job, enter)
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        enter(stacks)
        enter(node_stacks(stacks))
        # threads of autograd drop their references some time after backward() returns
        enter(torch.autograd.set_multithreading_enabled(False))
        has_thread = job.card is not None
        tracker = enter(Tracker(trace, stacks, scratch_rule, backward_has_thread=has_thread))
        if on_cuda:
            torch.set_default_device("cuda")
            exit_stack.callback(torch.set_default_device, None)
        names = enter(contextlib.closing(BlockNames(tracker)))
        measure_with(tracker)
        steps = StepRunner(job.steps, tracker, tell, when_stepped)
        program = program_with_options(job)

        def begin() -> Any:
            step = stacks.call_program(ended_at_training, program.begin)
            for note in program.stage.notes:
                caution(note)
            if program.makes_keras_model:
                trace.batch = job.keras_arguments.get("batch_size", SAMPLES)
            enter(training_patches())
            names.name_all()
            return step

        steps.run(begin, stacks.call_program)
        names.name_all()
        program.finished()
    if on_cuda and _trains_elsewhere(tracker):
        raise UsageError(_NOTHING_ON_CUDA)
    if steps.was_ended:
        cautions.found.append(
            Caution(
                f"the program was ended after {job.steps} steps of its optimizer: what it does "
                "later, an evaluation say, is not in the figures"
            )
        )
    trace.cautions = cautions.found
    trace.log.sources = source_lines(trace.log.stacks)
    return trace


def _enter_device(
    job: Job, enter: Callable[[AbstractContextManager[Any]], Any]
) -> ScratchRule | None:
    """Enter the replacements for device and data; return the rule of scratch memory."""
    scratch_rule: ScratchRule | None = None
    if job.card is None:
        host = CpuScratch.here()
        if host is not None:
            scratch_rule = host
            enter(host.rnn_workspaces())
    else:
        scratch_rule = CudaScratch(job.card)
        enter(fused_attention(job.card))
    enter(value_patches())
    enter(program_patches())
    enter(distributed(job.world_size if job.world_size > 1 else None))
    return scratch_rule


_NOTHING_ON_CUDA = (
    "the program keeps its tensors on the CPU: no model is on cuda; give it the arguments that it"
    ' has on a GPU (no .to("cpu"), no cpu=True), or estimate it for the CPU (device="cpu", or'
    " --device cpu before the program)"
)
_TRAINED = ("parameter", "gradient")


def _trains_elsewhere(tracker: Tracker) -> bool:
    """Tell whether a program trains on other devices alone; its data may be on cuda."""
    log = tracker.trace.log
    trained = {number for number, each in enumerate(log.labels) if each.role in _TRAINED}
    devices = {log.devices[log.device[row]] for row, at in enumerate(log.label) if at in trained}
    return bool(devices) and not any(name.startswith("cuda") for name in devices)


@cache
def calibrate() -> None:
    """Let gradients of fake tensors be added in place, once in a process."""
    with value_patches():
        _accumulate_once()  # torch loads more of itself the first time
        accumulation.calibrate(_accumulate_once)


def _accumulate_once() -> None:
    """Add the gradients of ``sin`` and ``cos``, each a new tensor, as a program's run would."""
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with FakeTensorMode(allow_non_fake_inputs=True), stacks, Tracker(trace, stacks):
        both = torch.ones(2, requires_grad=True).exp()
        (both.sin() * both.cos()).sum().backward()
