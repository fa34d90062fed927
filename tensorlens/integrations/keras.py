"""``MemoryCallback``: memory by epoch and batch, for ``fit``, ``evaluate`` and ``predict``.

::

    model.fit(x, y, callbacks=[tensorlens.keras.MemoryCallback()])
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TextIO

import keras

from tensorlens.integrations.epoch_report import (
    EVALUATE,
    FIT,
    PREDICT,
    EpochLevel,
    LoopReport,
    largest_tensors,
)
from tensorlens.integrations.hooks import fail_safe
from tensorlens.integrations.sampler import Follower
from tensorlens.recording import oom
from tensorlens.recording.oom.annotation import put


def _loop_hooks(kind: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the hooks of the begin and the end of a loop; an exception skips the latter."""

    def begin(callback: MemoryCallback, logs: Any = None) -> None:
        callback._begin(kind)

    def end(callback: MemoryCallback, logs: Any = None) -> None:
        callback._end(kind)

    return fail_safe(begin), fail_safe(end)


_NAMES = {FIT: "train_function", EVALUATE: "test_function", PREDICT: "predict_function"}
_ENDS_OF_DATA = ("StopIteration", "OutOfRangeError")
"""Exceptions of Python's and TensorFlow's iterators at the end of data."""


def _watched(
    function: Callable[..., Any], known: weakref.WeakMethod[Callable[[BaseException], None]]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except BaseException as error:
            failed = None if type(error).__name__ in _ENDS_OF_DATA else known()
            if failed is not None:
                failed(error)
            raise

    return run


def _put_back(undo: Callable[[], None]) -> None:
    oom.release()
    with suppress(Exception):  # attributes of a model may be properties of the program's
        undo()


class MemoryCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Measures the memory of each device by batch and epoch, on any backend of Keras 3.

    It adds to the logs of an epoch, for each device, in bytes:

    * ``memory/cpu``: allocated at the end of the epoch;
    * ``memory/cpu_peak``: peak of its batches and between them;
    * ``val_memory/cpu_peak``: peak of its validation.

    ``History`` has them too; TensorBoard, CSVLogger and others if they come later in the list of
    callbacks. ``cuda:0`` is written ``cuda_0``, as TensorBoard takes no colon.

    Args:
        show: print the report when ``fit``, ``evaluate`` or ``predict`` ends; :attr:`report` has
            it in any case, even after an interrupt.
        batches: read the counters at every batch. Without it only epochs are known, and Keras may
            run ahead of callbacks, as it does if no callback asks for batches.
        log_batches: add ``memory/cpu`` and ``memory/cpu_peak`` to the logs of each batch too; the
            progress bar shows their mean.
        devices: log only these, ``"cpu"`` or ``"cuda:0"``; all by default.
        top: number of largest tensors in the report when a loop ends.
        explain_oom: add resident memory and the running batch to out-of-memory exceptions.
        file: where to print; standard output by default.

    With ``steps_per_execution`` above 1 a figure covers all batches that ran as one.
    """

    def __init__(
        self,
        *,
        show: bool = True,
        batches: bool = True,
        log_batches: bool = False,
        devices: str | Iterable[str] | None = None,
        top: int = 5,
        explain_oom: bool = True,
        file: TextIO | None = None,
    ) -> None:
        super().__init__()
        self.show = show
        self.log_batches = log_batches
        self.top = top
        self.explain_oom = explain_oom
        self.file = file
        self._devices = {devices} if isinstance(devices, str) else devices and {*devices}
        self._follower: Follower | None = None
        self._is_in_fit = False
        """Whether the latest loop is Keras's own ``fit``, or inside one."""
        self._last: LoopReport | None = None
        self.is_on = True
        self._undo: dict[str, Callable[[], None]] = {}
        """Functions that restore the model's own, by the kind of loop."""
        if not batches:
            # Keras asks whether a hook is the one that it comes with
            for phase in ("train", "test", "predict"):
                for name in (f"on_{phase}_batch_begin", f"on_{phase}_batch_end"):
                    setattr(self, name, getattr(super(), name))

    @property
    def report(self) -> LoopReport | None:
        """Report on the running loop, or the last one; None before the first."""
        running = None if self._follower is None else self._follower.report()
        return running or self._last

    on_train_begin, on_train_end = _loop_hooks(FIT)
    on_test_begin, on_test_end = _loop_hooks(EVALUATE)
    on_predict_begin, on_predict_end = _loop_hooks(PREDICT)

    @fail_safe
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin an epoch."""
        if self._follower is not None:
            self._follower.epoch_begins(epoch)

    @fail_safe
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End an epoch and add its figures to the logs."""
        figures = None if self._follower is None else self._follower.epoch_ends()
        if figures is None or logs is None:
            return
        self._log(logs, figures.devices)
        validated = figures.validation.items()
        self._log(logs, {name: replace(level, allocated=-1) for name, level in validated}, "val_")

    @fail_safe
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Begin a batch, or the first of several that run as one."""
        if self._follower is not None:
            self._follower.batch_begins(batch)

    @fail_safe
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End a batch, or the last of several that run as one."""
        self._batch_ends(batch, logs)

    @fail_safe
    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """End a batch of ``evaluate`` or ``predict``."""
        self._batch_ends(batch, None)

    on_test_batch_begin = on_predict_batch_begin = on_train_batch_begin
    on_predict_batch_end = on_test_batch_end

    def _begin(self, kind: str) -> None:
        if self._follower is None:
            self._follower = Follower(notes=_notes())
            # where an exception ended the loop, nobody says so
            weakref.finalize(self, self._follower.close).atexit = False
        before, self._is_in_fit = self._is_in_fit, _fit_runs()
        if kind == EVALUATE and before and not self._is_in_fit:
            # the fit has ended, by an exception or not: this is no validation
            self._leave()
        self._follower.begin(kind)
        if self.explain_oom:
            self._watch(kind)

    def _watch(self, kind: str) -> None:
        """Watch the model's function for an exception, and reserve memory to explain it.

        The variables of ``fit``, which name the resident tensors, are alive there; once the
        exception has left ``fit`` they are not.
        """
        self._release(kind)
        function = getattr(self.model, _NAMES[kind], None)
        if callable(function):
            oom.reserve()
            watched = _watched(function, weakref.WeakMethod(self._failed))
            undo = put(self.model, _NAMES[kind], watched)
            # Keras does not report the end of an interrupted loop
            self._undo[kind] = ending = weakref.finalize(self, _put_back, undo)
            ending.atexit = False

    def _release(self, *kinds: str) -> None:
        """Restore the functions of these loops, or of all."""
        for kind in kinds or [*self._undo]:
            if kind in self._undo:
                self._undo.pop(kind)()

    def _batch_ends(self, batch: int, logs: Any) -> None:
        if self._follower is None:
            return
        levels = self._follower.batch_ends(batch)
        if self.log_batches and logs is not None:
            ended = {each.device: EpochLevel(each.allocated, each.peak, None) for each in levels}
            self._log(logs, ended)

    def _end(self, kind: str) -> None:
        self._release(kind)
        report = None if self._follower is None else self._follower.end(kind)
        if report is None:
            return
        roots = (self.model, getattr(self.model, "optimizer", None))
        self._last = report = replace(report, largest=largest_tensors(roots, self.top))
        if self.show:
            print(report, file=self.file or sys.stdout)

    def _log(
        self, logs: dict[str, float], levels: Mapping[str, EpochLevel], prefix: str = ""
    ) -> None:
        for device, level in levels.items():
            if not self._devices or device in self._devices:
                logs.update(level.logs(device, prefix))

    @fail_safe
    def _failed(self, error: BaseException) -> None:
        """Handle an exception that leaves a batch: Keras calls no hook for it."""
        try:
            if self._follower is not None:
                self._last = self._follower.report() or self._last
                self._follower.explain(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        self._release()
        if self._follower is not None:
            self._follower.close()


def _fit_runs() -> bool:
    """Return whether this thread is inside Keras's own ``fit``."""
    frame = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == FIT and module.startswith("keras."):
            return True
        frame = frame.f_back
    return False


def _notes() -> list[str]:
    backend = keras.backend.backend()
    if backend in ("torch", "tensorflow"):
        return []
    return [
        f"Keras runs on {backend}, whose memory cannot be counted: the figures are of the whole"
        " process, and devices are left out"
    ]
