"""Planning for TensorFlow: memory options, and estimates of a Keras model's train step.

Importing this imports neither TensorFlow nor Keras. :mod:`.options` has the options
(``docs/compare.md`` tells what each one does), :mod:`.measurement` runs a program's step with them,
or traces it without running it; :mod:`.train_step` traces a Keras model's train step.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable

from tensorlens.lazy import attach
from tensorlens.planning.step_facts import Watch
from tensorlens.planning.trials.jobs import Catalogue, Job, Result, Setting, choice, flag

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adafactor", "lion")
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
BLOCKS = "blocks"


def catalogue() -> Catalogue:
    """Return the built-in settings by name, in the order in which they are applied."""
    return {each.name: each for each in _SETTINGS}


def prepare() -> None:
    """Import what :func:`run` needs, TensorFlow and Keras included; no operation runs."""
    import tensorlens.planning.tensorflow.measurement  # noqa: F401

    with contextlib.suppress(Exception):
        importlib.import_module("keras")


def run(job: Job, tell: Callable[[int], None]) -> Result:
    """Run a job in this process, or trace its step if it is estimated."""
    from tensorlens.planning.tensorflow.measurement import HOOKS, estimate_trace
    from tensorlens.planning.trials.measurement import run_job

    return estimate_trace(job) if job.estimated else run_job(job, HOOKS)


def step_watch(mark: Callable[[str], None]) -> Watch:
    """Return a watch of a program's steps; ``mark`` is not called, unlike torch's."""
    from tensorlens.planning.tensorflow.step_watch import StepWatch

    return StepWatch()


_SETTINGS = (
    choice("policy", POLICIES, "Keras's policy of dtypes while the model is made"),
    choice(
        "optimizer",
        OPTIMIZERS,
        "every optimizer that is made becomes this one, with the same learning rate",
    ),
    Setting(
        "recompute",
        BLOCKS,
        lambda value: isinstance(value, str) and value == BLOCKS,
        "repeated blocks are computed again in backward: tf.recompute_grad",
    ),
    flag("jit_compile", "XLA for compiled models and every tf.function"),
    flag("run_eagerly", "True runs operation by operation, False as graphs"),
)

attach(
    __name__,
    {
        "clone_model": ("StepGraph",),
        "graphs.graph": ("Graph", "GraphNode", "NodeOutput", "linked", "nodes_of", "optimized"),
        "graphs.graph_run": ("GraphRunner", "eager_lasts"),
        "graphs.kernels": (),
        "step_watch": ("StepWatch",),
        "tracing": ("StepInput", "TraceRequest", "TracedStep"),
        "train_step": ("execute",),
    },
)
