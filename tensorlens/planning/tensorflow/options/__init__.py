"""Memory options of TensorFlow and Keras, applied to a step from outside.

Importing this imports neither. Each module has an option or two (:mod:`.stage` says what they know
of a program); :mod:`.measurement` runs a program with them, or traces it.
``docs/compare.md`` tells what each one does.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from tensorlens.planning.trials.jobs import Catalogue, Job, Mode, Result, Setting

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adafactor", "lion")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
BLOCKS = "blocks"


def catalogue() -> Catalogue:
    """Return the built-in settings by name, in the order in which they are applied."""
    return {each.name: each for each in _SETTINGS}


def prepare() -> None:
    """Import what :func:`run` needs, TensorFlow and Keras included; no operation runs."""
    import tensorlens.planning.tensorflow.options.measurement  # noqa: F401

    with contextlib.suppress(Exception):
        importlib.import_module("keras")


def run(job: Job) -> Result:
    """Run a job in this process, or trace its step."""
    from tensorlens.planning.tensorflow.options.measurement import BENCH, trace
    from tensorlens.planning.trials.measurement import run_job

    return trace(job) if job.mode is Mode.TRACED else run_job(job, BENCH)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _one_of(*known: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in known


_FLAG = "True or False"
_SETTINGS = (
    Setting(
        "policy",
        f"one of {', '.join(POLICIES)}",
        _one_of(*POLICIES),
        "Keras's policy of dtypes while the model is made",
    ),
    Setting(
        "optimizer",
        f"one of {', '.join(OPTIMIZERS)}",
        _one_of(*OPTIMIZERS),
        "every optimizer that is made becomes this one, with the same learning rate",
    ),
    Setting(
        "recompute",
        BLOCKS,
        _one_of(BLOCKS),
        "repeated blocks are computed again in backward: tf.recompute_grad",
    ),
    Setting("jit_compile", _FLAG, _is_flag, "XLA for compiled models and every tf.function"),
    Setting("run_eagerly", _FLAG, _is_flag, "operation by operation, or as graphs"),
)
