"""A program with its options, and torch's part of measured trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from tensorlens.frameworks.torch.failures import failed_request
from tensorlens.frameworks.torch.optimizer_steps import when_stepped
from tensorlens.planning.tensorflow.keras_training import step_of
from tensorlens.planning.torch.options import models, training
from tensorlens.planning.torch.options.models import Option, Stage
from tensorlens.planning.trials.jobs import CannotApply, Job, Measurement
from tensorlens.planning.trials.measurement import TrialHooks, host_limited
from tensorlens.planning.trials.meter import Meter
from tensorlens.planning.trials.stage import ProgramWithOptions

_OPTIONS: dict[str, type[Option]] = {
    "set_to_none": training.SetToNone,
    "shards": models.Shards,
    "channels_last": models.ChannelsLast,
    "checkpoint": models.Checkpoint,
    "autocast": models.Autocast,
    "offload": models.Offload,
    "compile": models.Compile,
    "accumulate": training.Accumulate,
    "prefetch_factor": training.PrefetchFactor,
}
"""In the order in which they act on a model: checkpointed blocks are compiled, not the reverse."""
_OPTIMIZER_SETTINGS = ("optimizer", "fused", "foreach")


def program_with_options(job: Job) -> ProgramWithOptions:
    """Return the program of a job with its options."""
    stage = Stage(estimated=job.estimated, batch=job.batch)
    return ProgramWithOptions(job, stage, list(_options(job.variant.settings, stage)), step_of)


def _options(settings: Mapping[str, Any], stage: Stage) -> Iterator[Option]:
    of_optimizers = {name: settings[name] for name in _OPTIMIZER_SETTINGS if name in settings}
    if of_optimizers:
        yield training.Optimizers(of_optimizers, stage)
    for name, kind in _OPTIONS.items():
        if name in settings:
            yield kind(settings[name], stage)
    if "alloc_conf" in settings and not stage.estimated and not torch.cuda.is_available():
        raise CannotApply("alloc_conf is of CUDA's caching allocator, and there is no CUDA device")


class TorchMeter(Meter):
    """A meter of step marks and peaks, with torch's statistics of CUDA devices."""

    def __init__(self, device: str | None) -> None:
        from tensorlens.frameworks.torch.cpu import cpu_counter

        super().__init__(cpu_counter(), device)

    def wait(self) -> None:
        """Wait until the devices are idle."""
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _device_bytes(self) -> dict[str, int]:
        return {f"cuda:{each}": torch.cuda.memory_allocated(each) for each in _cuda_devices()}

    def _device_peaks(self) -> dict[str, int]:
        return {f"cuda:{each}": torch.cuda.max_memory_allocated(each) for each in _cuda_devices()}

    def _device_figures(self, device: str, setup: int) -> Measurement:
        number = torch.device(device).index or 0
        peaks = (torch.cuda.max_memory_allocated(number), torch.cuda.max_memory_reserved(number))
        return Measurement(device, *peaks, setup, (), None)


def _cuda_devices() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)


def _limited_devices(nbytes: int) -> AbstractContextManager[None]:
    """Limit each device to ``nbytes``, less what is taken outside of its caching allocator."""
    for number in range(torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{number}")
        free, total = torch.cuda.mem_get_info(number)
        taken = total - free - torch.cuda.memory_reserved(number)
        fraction = max(nbytes - taken, 0) / total
        torch.cuda.set_per_process_memory_fraction(min(fraction, 1.0), number)
    return nullcontext()


def _refusal(error: BaseException, _limited: bool) -> str | None:
    request = failed_request(error)
    return None if request is None else request.text


HOOKS = TrialHooks(
    seed=lambda: torch.manual_seed(0),
    meter=TorchMeter,
    program=program_with_options,
    when_stepped=when_stepped,
    refusal=_refusal,
    limit_memory=lambda nbytes: (_limited_devices if torch.cuda.is_available() else host_limited)(
        nbytes
    ),
    needs_rehearsal=lambda: not torch.cuda.is_available(),
)
"""torch's part of a measured trial."""
