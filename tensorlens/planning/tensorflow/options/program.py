"""A program of TensorFlow's with an option around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.planning.tensorflow.keras_training import step_of
from tensorlens.planning.tensorflow.options.compilation import JitCompile, RunEagerly
from tensorlens.planning.tensorflow.options.graph_rewriting import MemoryOptimization
from tensorlens.planning.tensorflow.options.optimizers import Optimizer
from tensorlens.planning.tensorflow.options.precision import Policy
from tensorlens.planning.tensorflow.options.recomputing import recompute
from tensorlens.planning.tensorflow.options.stage import Option, Stage
from tensorlens.planning.trials.jobs import Job
from tensorlens.planning.trials.stage import Optioned

_KINDS: dict[str, Callable[[Any, Stage], Option]] = {
    "memory_optimization": MemoryOptimization,
    "policy": Policy,
    "optimizer": Optimizer,
    "recompute": recompute,
    "jit_compile": JitCompile,
    "run_eagerly": RunEagerly,
}
"""In the order in which they act."""


def optioned(job: Job, *, estimated: bool) -> Optioned:
    """Return the program of a job with its option.

    Args:
        job: whose.
        estimated: whether the step is traced and not run.

    Raises:
        CannotApply: the option cannot work here.
    """
    stage = Stage(estimated=estimated, batch=job.batch)
    settings = job.choice.settings
    options = [make(settings[name], stage) for name, make in _KINDS.items() if name in settings]
    return Optioned(job, stage, options, step_of)
