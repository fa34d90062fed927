"""A job whose steps run on fake tensors: the device is made ready before torch is imported."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

from tensorlens.folders import temporary_folder
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.torch.release import check_release
from tensorlens.heap.objects import without_tuples
from tensorlens.planning.card import H100
from tensorlens.planning.tensorflow.keras_training import check_is_of_torch, traced
from tensorlens.planning.torch.device.stand_in import Readiness, prepare
from tensorlens.planning.trace import Trace, caution
from tensorlens.planning.trials.jobs import Job, Program
from tensorlens.planning.trials.step_runner import forget

_PASSING = (
    *(f"{folder}{os.sep}" for folder in (temporary_folder(),) if folder),
    *(os.devnull, "/dev/", "/proc/"),
)
_ready: list[Readiness] = []
"""Of this process, once the first job has come: all that it runs are for one device."""


def run_job(job: Job, tell: Callable[[int], None]) -> Trace:
    """Run a job and return what it asks of allocators; ``tell`` hears the number of steps done."""
    if not _ready:
        _ready.append(_readiness(job))
        gc.freeze()
    from tensorlens.planning.torch.run import run

    try:
        trace = run(job, _ready[0], tell)
    except BaseException as error:
        card = None if job.device == "cpu" else job.card or H100
        of_keras = traced(error, job.device or "cuda", card, job.of_keras)
        if of_keras is None:
            raise
        return of_keras
    check_is_of_torch(trace)
    return trace


def settle(program: Program) -> bool:
    """Free what a job has left, and set aside what stays, as each look takes as long as it is.

    Returns whether another job may come: models and tensors that a module keeps are of one job.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    forget(program)
    gc.collect()
    of_tensors = (FakeTensor, kinds.variable())
    if any(issubclass(type(each), of_tensors) for each in without_tuples()):
        return False
    gc.freeze()
    return True


def _readiness(job: Job) -> Readiness:
    sys.addaudithook(_watch_files)
    check_release()
    readiness = Readiness(False) if job.device == "cpu" else prepare(job.card or H100)
    from tensorlens.planning.torch.device.fake_tensors import patch_fake_tensors
    from tensorlens.planning.torch.operators.calibration import calibrate

    if not readiness.is_ready:
        patch_fake_tensors()
    calibrate()
    return readiness


def _watch_files(event: str, arguments: tuple[Any, ...]) -> None:
    """Tell of files that the program writes: nothing but its tensors is a stand-in."""
    if event != "open" or not isinstance(arguments[0], str):
        return
    path, mode = arguments[0], arguments[1]
    if isinstance(mode, str) and set("wax+") & set(mode) and not path.startswith(_PASSING):
        caution(f"the program wrote {path}: its own files are real")
