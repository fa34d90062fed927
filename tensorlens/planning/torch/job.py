"""A job whose steps run on fake tensors; the device is prepared before torch is imported."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache

from tensorlens.errors import UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.torch.native import check_release
from tensorlens.heap.objects import without_tuples
from tensorlens.native.build import NativeUnavailable
from tensorlens.planning.card import Card
from tensorlens.planning.tensorflow.keras_training import check_is_of_torch, trace_training
from tensorlens.planning.torch.device.stand_in import prepare
from tensorlens.planning.trace import Trace
from tensorlens.planning.trials.jobs import Job, Program
from tensorlens.planning.trials.step_runner import forget


def estimate_trace(job: Job, tell: Callable[[int], None]) -> Trace:
    """Run a job and return its trace; ``tell`` is called with the number of finished steps."""
    _prepare_device(job.card)
    from tensorlens.planning.torch.run import run

    try:
        trace = run(job, tell)
    except BaseException as error:
        of_keras = trace_training(error, job, job.keras_arguments)
        if of_keras is None:
            raise
        return of_keras
    check_is_of_torch(trace)
    return trace


def settle(program: Program) -> bool:
    """Free the objects of a job, and exclude the remaining ones from garbage collection.

    Returns whether the process can run another job: not if a module keeps tensors of this one.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    forget(program)
    gc.collect()
    of_tensors = (FakeTensor, kinds.variable())
    if any(issubclass(type(each), of_tensors) for each in without_tuples()):
        return False
    gc.freeze()
    return True


@cache
def _prepare_device(card: Card | None) -> None:
    """Make a card appear to torch, or let fake tensors be on the CPU: once in a process."""
    check_release()
    if card is not None:
        try:
            prepare(card)
        except NativeUnavailable as error:
            raise UsageError(f'{error}; or estimate it for the CPU (device="cpu")') from error
    from tensorlens.planning.torch.device.fake_tensors import patch_fake_tensors
    from tensorlens.planning.torch.run import calibrate

    if card is None:
        patch_fake_tensors()
    calibrate()
    gc.freeze()
