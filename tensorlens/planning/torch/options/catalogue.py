"""Built-in settings of torch, and the functions that run them; importing it imports no torch.

:mod:`.models` and :mod:`.training` have the options, :mod:`.program` puts them around a program and
runs it. ``docs/compare.md`` says what each one does.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from tensorlens.frameworks.torch.native import check_release
from tensorlens.planning.step_facts import Watch
from tensorlens.planning.trials.jobs import Catalogue, Job, Result, Setting, choice, flag


def catalogue() -> Catalogue:
    """Return the built-in settings by name."""
    check_release()
    return {each.name: each for each in _SETTINGS}


def prepare() -> None:
    """Import what :func:`run` needs, torch included."""
    import tensorlens.planning.torch.options.program  # noqa: F401

    # the first step of an optimizer imports it (torch/_compile.py), some hundred MiB of modules
    with contextlib.suppress(Exception):
        importlib.import_module("torch._dynamo")


def run(job: Job, tell: Callable[[int], None]) -> Result:
    """Run a job in this process, on tensors without data if it is estimated."""
    if job.estimated:
        from tensorlens.planning.torch.job import estimate_trace

        return estimate_trace(job, tell)
    from tensorlens.planning.torch.options.program import HOOKS
    from tensorlens.planning.trials.measurement import run_job

    return run_job(job, HOOKS)


def step_watch(mark: Callable[[str], None]) -> Watch:
    """Return a watch of a program's steps."""
    from tensorlens.planning.torch.step_watch import StepWatch

    return StepWatch(mark)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _true(name: str, effect: str) -> Setting:
    return Setting(name, "True", lambda value: value is True, effect)


def _number(name: str, unit: str, least: int, effect: str) -> Setting:
    def is_number(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Setting(name, f"a number of {unit}, {least} or more", is_number, effect)


_SETTINGS = (
    Setting(
        "alloc_conf",
        "a text such as 'expandable_segments:True'",
        _is_text,
        "PYTORCH_CUDA_ALLOC_CONF of the process",
    ),
    flag("set_to_none", "zero_grad() frees gradients (True) or fills them with zeros (False)"),
    choice(
        "optimizer",
        ("sgd", "adam", "adamw", "adam8bit"),
        "every optimizer that is made becomes this one, with the same parameters and lr",
    ),
    flag("fused", "the fused argument of every optimizer that is made"),
    flag("foreach", "the foreach argument of every optimizer that is made"),
    choice(
        "autocast", ("bf16", "fp16"), "autocast around the step, except backward and the optimizer"
    ),
    choice(
        "checkpoint",
        ("blocks", "selective"),
        "repeated blocks of the model are computed again in backward",
    ),
    _true("offload", "tensors saved for backward wait on the host"),
    _true("channels_last", "four-dimensional parameters and inputs of the model in channels_last"),
    Setting(
        "compile",
        "True or a mode of torch.compile",
        lambda value: value is True or _is_text(value),
        "torch.compile of the model",
    ),
    _number("shards", "processes", 2, "FSDP2 over this number of processes"),
    _number(
        "accumulate",
        "parts",
        2,
        "the batch in equal parts, gradients added up, one step of the optimizer",
    ),
    _number("prefetch_factor", "batches", 1, "batches ahead for each worker of every DataLoader"),
)
