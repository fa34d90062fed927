"""A program with an option around it: made and stepped as the option says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from tensorlens.planning.tensorflow.keras_training import step_of
from tensorlens.planning.torch.cautions import tell
from tensorlens.planning.torch.options.activations import (
    Autocast,
    ChannelsLast,
    Checkpoint,
    Compile,
    Offload,
)
from tensorlens.planning.torch.options.optimizers import Accumulate, Optimizers, SetToNone
from tensorlens.planning.torch.options.prefetch import PrefetchFactor
from tensorlens.planning.torch.options.shards import Shards
from tensorlens.planning.torch.options.stage import Option, Stage
from tensorlens.planning.trials.jobs import CannotApply, Job
from tensorlens.planning.trials.stage import Optioned

_KINDS: dict[str, type[Option]] = {
    "set_to_none": SetToNone,
    "shards": Shards,
    "channels_last": ChannelsLast,
    "checkpoint": Checkpoint,
    "autocast": Autocast,
    "offload": Offload,
    "compile": Compile,
    "accumulate": Accumulate,
    "prefetch_factor": PrefetchFactor,
}
"""In the order in which they act on a model: what is checkpointed is compiled, not the reverse."""
_OF_OPTIMIZERS = ("optimizer", "fused", "foreach")


def begin(job: Job) -> Any:
    """Begin a program on tensors without data, with an option; return its step."""
    made = optioned(job, estimated=True)
    step = made.begin()
    for note in made.stage.notes:
        tell(note)
    if step is None:
        return None

    def checked() -> None:
        step()
        made.finished()

    return checked


def optioned(job: Job, *, estimated: bool) -> Optioned:
    """Return the program of a job with its option.

    Args:
        job: whose.
        estimated: whether it runs on tensors without data.

    Raises:
        CannotApply: the option cannot work here.
    """
    stage = Stage(estimated=estimated, batch=job.batch)
    return Optioned(job, stage, list(_options(job.choice.settings, stage)), step_of)


def _options(settings: Mapping[str, Any], stage: Stage) -> Any:
    of_optimizers = {name: settings[name] for name in _OF_OPTIMIZERS if name in settings}
    if of_optimizers:
        yield Optimizers(of_optimizers, stage)
    for name, kind in _KINDS.items():
        if name in settings:
            yield kind(settings[name], stage)
    if "alloc_conf" in settings and not stage.estimated and not torch.cuda.is_available():
        raise CannotApply("alloc_conf is of CUDA's caching allocator, and there is no CUDA device")
