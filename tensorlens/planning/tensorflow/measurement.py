"""Trials on TensorFlow: measured runs, and traces of a train step."""

from __future__ import annotations

import re
import sys
from contextlib import AbstractContextManager
from dataclasses import replace

import tensorflow as tf

from tensorlens.frameworks.tensorflow.counters import device_counter, is_initialized, used_devices
from tensorlens.frameworks.tensorflow.cpu import cpu_counter
from tensorlens.frameworks.tensorflow.failures import failed_request
from tensorlens.frameworks.tensorflow.hooks import when_stepped
from tensorlens.guards import one_line
from tensorlens.planning.tensorflow.keras_training import (
    Training,
    step_of,
    trace_training,
    training_patches,
)
from tensorlens.planning.tensorflow.options import OPTIONS, keras
from tensorlens.planning.trace import Trace
from tensorlens.planning.trials.global_settings import apply
from tensorlens.planning.trials.jobs import CannotApply, Job, Measurement
from tensorlens.planning.trials.measurement import TrialHooks, host_limited
from tensorlens.planning.trials.meter import Meter
from tensorlens.planning.trials.stage import ProgramWithOptions, Stage

_NO_MEMORY = re.compile(r"out.of.memory|bad_alloc|could not create a memory|failed to alloc", re.I)
"""Messages of kernels and libraries that got no memory from the system."""


class TensorflowMeter(Meter):
    """Meter of TensorFlow's devices; on the CPU it has the peak of each step too."""

    def __init__(self, device: str | None) -> None:
        super().__init__(cpu_counter(), device)
        self._highest: dict[str, int] = {}
        """Highest peak of each accelerator so far."""

    def wait(self) -> None:
        """Wait until the devices are idle."""
        if is_initialized() and used_devices():
            tf.test.experimental.sync_devices()

    def figures(self) -> Measurement:
        """Return the peaks.

        Raises:
            CannotApply: the requested device was not used.
        """
        found = super().figures()
        if found.device != "cpu":
            return found
        at_setup = max(self._peaks[: self._first_step], default=0)
        steps = self._peaks[self._first_step :]
        return replace(found, step_peaks=tuple(max(at_setup, each) for each in steps))

    def _device_bytes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for device in used_devices():
            found[device], peak, _ = device_counter(device).reader()()
            self._highest[device] = max(self._highest.get(device, 0), peak)
        return found

    def _device_peaks(self) -> dict[str, int]:
        return self._highest

    def _device_figures(self, device: str, setup: int) -> Measurement:
        if not self._highest.get(device):
            raise CannotApply(f"nothing was allocated on {device}")
        missing = {"peak_reserved": "TensorFlow does not tell what its allocator holds"}
        return Measurement(device, self._highest[device], None, setup, (), None, missing=missing)


def _program_with_options(job: Job) -> ProgramWithOptions:
    """Return the program of a job with its options applied."""
    stage = Stage(estimated=job.estimated, batch=job.batch)
    settings = job.variant.settings
    options = [kind(settings[name], stage) for name, kind in OPTIONS.items() if name in settings]
    return ProgramWithOptions(job, stage, options, step_of)


def _refusal(error: BaseException, limited: bool) -> str | None:
    request = failed_request(error)
    if request is not None:
        return request.text
    if isinstance(error, MemoryError):
        return "MemoryError"
    text = str(error) if limited and isinstance(error, tf.errors.OpError) else ""
    return " ".join(text.split())[:300] if _NO_MEMORY.search(text) else None


def _limit_memory(nbytes: int) -> AbstractContextManager[None]:
    if tf.config.list_physical_devices("GPU"):
        raise CannotApply("TensorFlow's memory is limited on the CPU only: hide the GPU")
    return host_limited(nbytes)


def _clear_session() -> None:
    keras = sys.modules.get("keras")
    if keras is not None:
        keras.utils.clear_session(free_memory=False)


HOOKS = TrialHooks(
    seed=lambda: tf.random.set_seed(0),
    meter=TensorflowMeter,
    program=_program_with_options,
    when_stepped=when_stepped,
    refusal=_refusal,
    limit_memory=_limit_memory,
    needs_rehearsal=lambda: True,
    clear=_clear_session,
)
"""TensorFlow's part of a measured trial."""

_OWN_LOOP = (
    "an estimate traces what train_on_batch() or fit() of a compiled Keras model would train, and"
    " the step calls neither; measure it"
)


def estimate_trace(job: Job) -> Trace:
    """Return the requests of one train step to allocators.

    The program builds its model and data for real under its options; its step runs until it trains
    a Keras model.

    Raises:
        CannotApply: the option, or the step, cannot be estimated.
    """
    keras("an estimate")
    apply(job.program.global_settings or {})
    made = _program_with_options(job)
    step = made.begin()
    if step is None:
        raise CannotApply("an estimate needs a make_step() that returns step()")
    try:
        with training_patches():
            step()
    except Training as training:
        wanted = training
    else:
        raise CannotApply(_OWN_LOOP)
    try:
        found = trace_training(wanted, job, {})
    except Exception as error:
        raise CannotApply(f"the train step cannot be traced: {one_line(error, 300)}") from error
    assert found is not None
    return found
