"""What an estimate is of: a program whose steps run without data, or a Keras model."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.guards import one_line
from tensorlens.planning.card import DeviceSpec
from tensorlens.planning.estimate.assembly import assemble
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.processes import ProgramFailed, Runner, progress
from tensorlens.planning.trace import Trace
from tensorlens.planning.trials.global_settings import settings
from tensorlens.planning.trials.jobs import Job, Mode, Program, Reason, Trouble
from tensorlens.planning.trials.pickling import pack

MakeStep = Callable[..., Any] | str

STEPS = 2
"""Optimizers make their state in the first step; the second has all of it from its beginning."""


def program(
    make_step: MakeStep, arguments: Sequence[str] = (), *, with_data: bool = False
) -> Program:
    """Return the program of a function, ``module:function``, ``file.py:function`` or a script.

    Tensors that a function refers to go with their values only ``with_data``.

    Raises:
        UsageError: it is none of these, there is no such file or module, or the function cannot
            go to another process.
    """
    given = Program("", arguments=tuple(arguments), global_settings=settings())
    if not isinstance(make_step, str):
        if not callable(make_step):
            raise UsageError(
                f"make_step is a {type(make_step).__name__}: give a function that builds model, "
                'optimizer and data and returns step(), or "module:function"'
            )
        is_model = isinstance(make_step, kinds.model()) or hasattr(make_step, "parameters")
        if is_model or inspect.isgeneratorfunction(make_step):
            what = "a model" if is_model else "a generator function"
            raise UsageError(
                f"make_step is {what}: give a function that builds model, optimizer and data and "
                "returns step()"
            )
        code = getattr(make_step, "__code__", None)
        name = getattr(make_step, "__qualname__", None) or type(make_step).__name__
        name = name if code is None else f"{Path(code.co_filename).name}:{name}"
        return replace(given, name=name, parcel=pack(make_step, with_data=with_data))
    place, separator, function = make_step.rpartition(":")
    if not separator or place in ("", ".") or "/" in function or "\\" in function:
        place, function = make_step, ""
    if not place.endswith(".py") and not Path(place).is_file():
        if not function:
            raise UsageError(
                f'{make_step!r} is no file: give "module:function", "file.py:function" or a script'
            )
        if not _exists(place):
            raise UsageError(f"there is no module {place!r} for {make_step!r}")
        return replace(given, name=make_step, module=place, function=function)
    if not Path(place).is_file():
        raise UsageError(f"there is no file {place}")
    file = str(Path(place).resolve())
    return replace(given, name=make_step, file=file, function=function or None)


def search_path() -> tuple[str, ...]:
    """Return where modules are found, in order, with the folder that one is in now."""
    here = str(Path.cwd())
    found = [here if each == "" else each for each in sys.path]
    return tuple(found if here in found else [here, *found])


def _exists(module: str) -> bool:
    with mock.patch.object(sys, "path", list(search_path())):
        try:
            return importlib.util.find_spec(module.partition(".")[0]) is not None
        except (ImportError, ValueError):
            return False


BATCHES = ("batch", "batch_size")
"""Names of an argument that is the batch."""
_ASKED = {"batch_size": "batch", "run_eagerly": "eager"}
"""Arguments that the tracing of a Keras model calls otherwise."""


@dataclass(frozen=True)
class StepsRequest:
    """A program whose steps are estimated: torch's on fake tensors, TensorFlow's traced."""

    job: Job
    """Its run, but for the mode, the device and what of it is Keras's."""
    spec: DeviceSpec
    settings: str

    def ask(self, runner: Runner) -> Estimate:
        """Run it and return the answer.

        Raises:
            UsageError: the program is none that makes steps, or it cannot be pickled.
            ProgramFailed: the program raised an error, or it ended the process.
        """
        job, spec = self.job, self.spec
        given = job.of_keras if job.batch is None else {**job.of_keras, "batch_size": job.batch}
        of_keras = {_ASKED.get(name, name): each for name, each in given.items()}
        mode = Mode.FAKE if job.framework == "torch" else Mode.TRACED
        asked = replace(job, mode=mode, device=spec.kind, card=spec.card, of_keras=of_keras)
        with progress(job.name, "step", job.steps) as done:
            trace = runner.run(asked, lambda count: done(count, ""))
        if isinstance(trace, Trouble):
            if trace.kind is Reason.USAGE:
                raise UsageError(trace.text)
            raise ProgramFailed(trace)
        assert isinstance(trace, Trace)
        if trace.batch is None and job.of_keras:
            raise UsageError(
                f"{', '.join(job.of_keras)}: these are arguments of Keras models, and"
                f" {job.name} makes none"
            )
        return assemble(trace, spec, job.name, self.settings)

    def with_batch(self, batch: int) -> StepsRequest:
        """Return the same request, whose function is called with a batch."""
        return replace(self, job=replace(self.job, batch=batch, batch_argument=""))

    def with_argument(self, name: str, value: int) -> StepsRequest:
        """Return the same request with a keyword argument of its function."""
        if name in BATCHES:
            return replace(self, job=replace(self.job, batch=value, batch_argument=name))
        choice = self.job.choice
        changed = replace(choice, arguments={**choice.arguments, name: value})
        return replace(self, job=replace(self.job, choice=changed))


_OPTIONS = ("optimizer", "loss", "policy", "input_shape", "input_dtype")
_ALL = ("batch_size", "run_eagerly", *_OPTIONS)
_ON_TORCH = (
    "this Keras runs on torch: give a function that builds and returns the compiled model:"
    ' estimate("train.py:make_model", batch_size=32)'
)


def check_options(options: Mapping[str, Any]) -> None:
    """Check what is asked of a Keras model."""
    for name in options.keys() - set(_ALL):
        near = difflib.get_close_matches(name, _ALL, n=1, cutoff=0.5)
        known = near or _ALL
        raise UsageError(f"{name}: a Keras model has no such argument; nearest: {', '.join(known)}")
    batch = options.get("batch_size", 1)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch_size={batch!r}: how many samples a step has, at least 1")


def keras_request(
    model: Any,
    spec: DeviceSpec,
    *,
    batch_size: int = 32,
    run_eagerly: bool | None = None,
    **options: Any,
) -> KerasRequest:
    """Return what is asked of a model, with everything checked that can be without tracing."""
    check_options({"batch_size": batch_size, **options})
    backend = kinds.backend()
    if backend == "torch":
        raise UsageError(_ON_TORCH)
    if backend != "tensorflow":
        raise UsageError(
            f"this Keras runs on {backend}, whose memory cannot be simulated: estimates are of "
            "Keras on tensorflow or torch"
        )
    if not getattr(model, "compiled", False) and options.get("loss") is None:
        raise UsageError("the model is not compiled: give loss=, and optimizer= if not rmsprop")
    eager = bool(getattr(model, "run_eagerly", False)) if run_eagerly is None else run_eagerly
    return KerasRequest(model, batch_size, {**options, "eager": eager}, spec)


@dataclass(frozen=True)
class KerasRequest:
    """A Keras model whose train step is estimated."""

    model: Any
    batch: int
    options: Mapping[str, Any]
    """As ``TraceRequest`` takes them."""
    spec: DeviceSpec

    def ask(self, runner: Runner) -> Estimate:
        """Trace the step in this process and return the answer.

        Raises:
            UsageError: the model's inputs have no shape.
            TensorlensError: the train step cannot be traced.
        """
        # TensorFlow is there already, or there would be no model
        from tensorlens.planning.tensorflow.run import run
        from tensorlens.planning.tensorflow.tracing import TraceRequest

        spec = self.spec
        asked = TraceRequest(self.batch, device=spec.kind, card=spec.card, **self.options)
        try:
            trace = run(self.model, asked)
        except TensorlensError:
            raise
        except Exception as error:
            raise TensorlensError(
                f"the train step cannot be traced: {one_line(error, 300)}"
            ) from error
        return assemble(trace, replace(spec, device=spec.kind), self.model.name)

    def with_batch(self, batch: int) -> KerasRequest:
        """Return the same request for another batch."""
        return replace(self, batch=batch)

    def with_argument(self, name: str, value: int) -> KerasRequest:
        """Return the same request for another batch: a model has no other argument."""
        if name not in BATCHES:
            raise UsageError(
                f"{name}: of a Keras model the batch alone varies; give a make_step that takes it"
            )
        return self.with_batch(value)
