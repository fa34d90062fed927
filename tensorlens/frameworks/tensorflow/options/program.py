"""A program of TensorFlow's with an option around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorlens.frameworks.tensorflow.options.compiling import JitCompile, RunEagerly
from tensorlens.frameworks.tensorflow.options.optimizers import Optimizer
from tensorlens.frameworks.tensorflow.options.precision import Policy
from tensorlens.frameworks.tensorflow.options.recomputing import recompute
from tensorlens.frameworks.tensorflow.options.rewriting import MemoryOptimization
from tensorlens.frameworks.tensorflow.options.stage import Option, Stage
from tensorlens.frameworks.trials.optioned import Optioned
from tensorlens.frameworks.trials.trial import Trial

_KINDS: dict[str, Callable[[Any, Stage], Option]] = {
    "memory_optimization": MemoryOptimization,
    "policy": Policy,
    "optimizer": Optimizer,
    "recompute": recompute,
    "jit_compile": JitCompile,
    "run_eagerly": RunEagerly,
}
"""In the order in which they act."""


def optioned(trial: Trial, batch: int | None, *, estimated: bool) -> Optioned:
    """Return the program of a trial with its option.

    Args:
        trial: whose.
        batch: what the function that makes the step is called with; None: nothing.
        estimated: whether the step is traced and not run.

    Raises:
        CannotApply: the option cannot work here.
    """
    stage = Stage(estimated=estimated, batch=batch)
    settings = trial.choice.settings
    options = [make(settings[name], stage) for name, make in _KINDS.items() if name in settings]
    return Optioned(trial.program, trial.choice, stage, options)
