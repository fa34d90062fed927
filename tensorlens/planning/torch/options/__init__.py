"""Memory options of torch, applied to a step from outside; importing this imports no torch.

Each module has a few options (:mod:`.stage` says what an option is); :mod:`.program` puts them
around a program and runs it. ``docs/compare.md`` tells what each one does.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from tensorlens.frameworks.torch.release import check_release
from tensorlens.planning.trials.jobs import Catalogue, Job, Result, Setting

OPTIMIZERS = ("sgd", "adam", "adamw", "adam8bit")
PRECISIONS = ("bf16", "fp16")
CHECKPOINTS = ("blocks", "selective")


def catalogue() -> Catalogue:
    """Return the built-in settings by name, in the order in which they are applied.

    Raises:
        UsageError: torch is too old.
    """
    check_release()
    return {each.name: each for each in _SETTINGS}


def prepare() -> None:
    """Import what :func:`run` needs, torch included; it does no work of its own."""
    import tensorlens.planning.torch.options.program  # noqa: F401

    # the first step of an optimizer imports it (torch/_compile.py), some hundred MiB of modules
    with contextlib.suppress(Exception):
        importlib.import_module("torch._dynamo")


def run(job: Job) -> Result:
    """Run a job in this process."""
    from tensorlens.planning.torch.options import program

    return program.run(job)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_true(value: Any) -> bool:
    return value is True


def _one_of(*known: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in known


def _is_at_least(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_compile(value: Any) -> bool:
    return value is True or (isinstance(value, str) and bool(value))


_FLAG = "True or False"
_SETTINGS = (
    Setting(
        "alloc_conf",
        "a text such as 'expandable_segments:True'",
        lambda value: isinstance(value, str) and bool(value),
        "PYTORCH_CUDA_ALLOC_CONF of the process",
    ),
    Setting(
        "set_to_none",
        _FLAG,
        _is_flag,
        "zero_grad() frees gradients (True) or fills them with zeros (False)",
    ),
    Setting(
        "optimizer",
        f"one of {', '.join(OPTIMIZERS)}",
        _one_of(*OPTIMIZERS),
        "every optimizer that is made becomes this one, with the same parameters and lr",
    ),
    Setting("fused", _FLAG, _is_flag, "the fused argument of every optimizer that is made"),
    Setting("foreach", _FLAG, _is_flag, "the foreach argument of every optimizer that is made"),
    Setting(
        "autocast",
        f"one of {', '.join(PRECISIONS)}",
        _one_of(*PRECISIONS),
        "autocast around the step, but for backward and the optimizer",
    ),
    Setting(
        "checkpoint",
        f"one of {', '.join(CHECKPOINTS)}",
        _one_of(*CHECKPOINTS),
        "repeated blocks of the model are computed again in backward",
    ),
    Setting(
        "offload",
        "True",
        _is_true,
        "tensors saved for backward wait on the host",
    ),
    Setting(
        "channels_last",
        "True",
        _is_true,
        "four-dimensional parameters and inputs of the model in channels_last",
    ),
    Setting(
        "compile", "True or a mode of torch.compile", _is_compile, "torch.compile of the model"
    ),
    Setting(
        "shards",
        "a number of processes, 2 or more",
        _is_at_least(2),
        "FSDP2 over so many processes",
    ),
    Setting(
        "accumulate",
        "a number of parts, 2 or more",
        _is_at_least(2),
        "the batch in so many parts, gradients added up, one step of the optimizer",
    ),
    Setting(
        "prefetch_factor",
        "a number of batches, 1 or more",
        _is_at_least(1),
        "so many batches ahead for each worker of every DataLoader",
    ),
)
