"""A trial on TensorFlow: run for real, or its training traced in place of being run."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.counters import device_counter, is_initialized, used_devices
from tensorlens.frameworks.tensorflow.failures import failed_request
from tensorlens.frameworks.tensorflow.optimizer_steps import OptimizerSteps
from tensorlens.planning.tensorflow.keras_training import Training, intercepted, step_of, traced
from tensorlens.planning.tensorflow.options.settings import (
    JitCompile,
    Optimizer,
    Policy,
    RecomputeBlocks,
    RunEagerly,
)
from tensorlens.planning.tensorflow.options.stage import Option, Stage, keras
from tensorlens.planning.trace import Trace
from tensorlens.planning.trials.global_settings import apply
from tensorlens.planning.trials.host_limits import host_limited, peak_resident
from tensorlens.planning.trials.jobs import CannotApply, Job, Measured
from tensorlens.planning.trials.stage import Optioned

_OF_MEMORY = re.compile(r"out.of.memory|bad_alloc|could not create a memory|failed to alloc", re.I)
"""Messages of kernels and libraries that the system gives no memory."""


_KINDS: dict[str, Callable[[Any, Stage], Option]] = {
    "policy": Policy,
    "optimizer": Optimizer,
    "recompute": RecomputeBlocks,
    "jit_compile": JitCompile,
    "run_eagerly": RunEagerly,
}
"""In the order in which they act."""


class _Bench:
    """TensorFlow's part in the running of a trial."""

    def seed(self) -> None:
        tf.random.set_seed(0)

    def meter(self, device: str | None) -> TensorflowMeter:
        return TensorflowMeter(device)

    def optioned(self, job: Job) -> Optioned:
        return _optioned(job, estimated=False)

    def follow(self, act: Callable[[], None]) -> OptimizerSteps:
        return OptimizerSteps(act)

    def refusal(self, error: BaseException, *, limited: bool) -> str | None:
        request = failed_request(error)
        if request is not None:
            return request.text
        if isinstance(error, MemoryError):
            return "MemoryError"
        text = str(error) if limited and isinstance(error, tf.errors.OpError) else ""
        return " ".join(text.split())[:300] if _OF_MEMORY.search(text) else None

    def limited(self, nbytes: int | None) -> AbstractContextManager[None]:
        if nbytes is None:
            return nullcontext()
        if tf.config.list_physical_devices("GPU"):
            raise CannotApply("TensorFlow's memory is limited on the CPU only: hide the GPU")
        return host_limited(nbytes)

    def rehearses(self) -> bool:
        return True

    def cleared(self) -> None:
        keras = sys.modules.get("keras")
        if keras is not None:
            keras.utils.clear_session(free_memory=False)


BENCH = _Bench()


class TensorflowMeter:
    """Takes the marks of steps, and reads the peaks.

    Args:
        device: whose; None: the accelerator that is used, or the CPU where none is.
    """

    def __init__(self, device: str | None) -> None:
        from tensorlens.frameworks.tensorflow.cpu import cpu_counter

        self._device = "cuda:0" if device == "cuda" else device
        self._counter = cpu_counter()
        self._read = self._counter.reader()
        self._before = self._read()[0]
        self._peaks = {"cpu": 0}
        self._setup: dict[str, int] = {}
        self._setup_peak = 0
        self._step_peaks: list[int] = []

    def mark(self, name: str, row: int | None = None) -> None:
        """Note the peaks so far, and of the first step what is there when it begins."""
        self.wait()
        allocated, peak, _ = self._read()
        now = {"cpu": allocated - self._before}
        self._note("cpu", peak - self._before)
        self._step_peaks.append(peak - self._before)
        for device in used_devices():
            now[device], peak, _ = device_counter(device).reader()()
            self._note(device, peak)
        if name == "step 1":
            self._setup, self._setup_peak = now, self._peaks["cpu"]
            self._step_peaks.clear()

    def forget_marks(self) -> None:
        """Begin anew: what ran before were no steps."""
        self._setup = {}

    def wait(self) -> None:
        """Return when devices have done all that they were asked to."""
        if is_initialized() and used_devices():
            tf.test.experimental.sync_devices()

    def figures(self) -> Measured:
        """Return the peaks.

        Raises:
            CannotApply: the device that is wanted was not used.
        """
        others = {name: peak for name, peak in self._peaks.items() if name != "cpu" and peak}
        device = self._device or max(others, key=others.__getitem__, default="cpu")
        if device not in ("cpu", *others):
            raise CannotApply(f"nothing was allocated on {device}")
        peak, setup = self._peaks[device], self._setup.get(device, 0)
        if device != "cpu":
            missing = {"peak_reserved": "TensorFlow does not tell what its allocator holds"}
            return Measured(device, peak, None, setup, (), None, missing=missing)
        missing = dict(self._counter.missing)
        step_peaks = tuple(max(self._setup_peak, each) for each in self._step_peaks)
        resident = peak_resident()
        if resident is None:
            missing["peak_reserved"] = "this system does not tell the peak of the resident set"
        return Measured(
            device, peak, resident, setup, (), None, step_peaks=step_peaks, missing=missing
        )

    def _note(self, device: str, peak: int) -> None:
        self._peaks[device] = max(self._peaks.get(device, 0), peak)


def _optioned(job: Job, *, estimated: bool) -> Optioned:
    """Return the program of a job with its option."""
    stage = Stage(estimated=estimated, batch=job.batch)
    settings = job.choice.settings
    options = [make(settings[name], stage) for name, make in _KINDS.items() if name in settings]
    return Optioned(job, stage, options, step_of)


_OWN_LOOP = (
    "an estimate traces what train_on_batch() or fit() of a compiled Keras model would train, and"
    " the step calls neither; measure it"
)


def trace(job: Job) -> Trace:
    """Return what one train step asks of allocators.

    The program builds its model and its data for real, with the option around it; its step runs to
    where a model would be trained.

    Raises:
        CannotApply: the option, or the step, cannot be estimated.
    """
    keras("an estimate")
    apply(job.program.global_settings or {})
    made = _optioned(job, estimated=True)
    step = made.begin()
    if step is None:
        raise CannotApply("an estimate needs a make_step() that returns step()")
    try:
        with intercepted():
            step()
    except Training as training:
        wanted = training
    else:
        raise CannotApply(_OWN_LOOP)
    try:
        found = traced(wanted, "cpu" if job.device == "cpu" else "cuda", job.card, {})
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise CannotApply(f"the train step cannot be traced: {reason}") from error
    assert found is not None
    return found
