"""``estimate()``: the memory that a program's steps will need, from a run on fake tensors."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.guards import one_line
from tensorlens.planning.allocators.cuda import parse_settings, settings_text
from tensorlens.planning.card import Card, DeviceSpec, device_spec
from tensorlens.planning.estimate.assembly import assemble
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import STEPS, MakeStep, program, search_path
from tensorlens.planning.processes import ProgramFailed, Runner, shared_runner
from tensorlens.planning.progress import progress
from tensorlens.planning.trace import Trace
from tensorlens.planning.trials.jobs import Failure, FailureKind, Job, Variant


class KerasOptions(TypedDict, total=False):
    """Options of a Keras model; :func:`estimate` describes them."""

    batch_size: int
    run_eagerly: bool | None
    optimizer: Any
    loss: Any
    policy: str | None
    input_shape: Any
    input_dtype: str | None


class ProgramOptions(KerasOptions, total=False):
    """Options of a program, whatever the device; :func:`estimate` describes them."""

    steps: int
    settings: str | None
    arguments: Mapping[str, Any] | None
    world_size: int


def estimate(
    make_step: MakeStep | Any,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    steps: int = STEPS,
    capacity: int | str | None = None,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
    **keras_options: Unpack[KerasOptions],
) -> Estimate:
    """Predict the GPU memory of a program's training steps without the GPU.

    The steps run in another process on fake tensors, which have shapes and no bytes; their
    requests go to a simulated caching allocator.

    Args:
        make_step: function that builds model, optimizer and data and returns ``step()``, which runs
            one step; or that is the whole program and returns None: its optimizer's steps count. It
            may return a compiled Keras model, or a step that trains one.
            Or ``"module:function"``, ``"file.py:function"``, or a script. Or a Keras model on
            TensorFlow, whose compiled train step is traced in this process without data.
        device: ``cuda``, or ``cpu`` for host memory.
        card: name of the card: ``h100``, ``rtx 3090``.
        steps: number of steps to run; optimizers make their state in the first one.
        capacity: bytes of the card to fit into, or a text such as ``24 GiB``.
        settings: ``PYTORCH_CUDA_ALLOC_CONF`` on the card; by default its value here.
        arguments: keyword arguments of ``make_step``.
        world_size: number of processes that train together; the figures are of one.
        script_args: ``sys.argv[1:]`` of a script.
        keras_options: those of a Keras model: ``batch_size`` (32); to compile it differently,
            ``optimizer``, ``loss``, ``policy`` (``"mixed_float16"``), ``run_eagerly``; if it has
            none of its own, ``input_shape`` without the batch, and ``input_dtype``.

    Raises:
        UsageError: an argument makes no sense; one line says why.
        ProgramFailed: the program raised an error.
    """
    asked = request(
        make_step,
        device=device,
        card=card,
        steps=steps,
        capacity=capacity,
        settings=settings,
        arguments=arguments,
        world_size=world_size,
        script_args=script_args,
        **keras_options,
    )
    with shared_runner(keeps=True) as runner:
        return asked.run(runner)


def estimate_cards(
    make_step: MakeStep | Any, cards: Sequence[str | Card], **options: Any
) -> Mapping[str, Estimate]:
    """Return the estimates for several cards by the cards' full names.

    Args:
        make_step: as for :func:`estimate`.
        cards: names of the cards.
        options: as for :func:`estimate`.

    Raises:
        UsageError: an argument makes no sense; one line says why.
        ProgramFailed: the program raised an error.
    """
    if isinstance(cards, str | Card) or not cards:
        raise UsageError(f'cards={cards!r}: give a list of names: ["t4", "a100-80gb"]')
    requests = [request(make_step, card=card, **options) for card in cards]
    with Runner() as runner:
        answers = [each.run(runner) for each in requests]
    return {"" if each.card is None else each.card.name: each for each in answers}


def request(
    target: MakeStep | Any,
    *,
    device: str = "cuda",
    card: str | Card | None = None,
    capacity: int | str | None = None,
    steps: int = STEPS,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    script_args: Sequence[str] = (),
    **keras_options: Unpack[KerasOptions],
) -> Request:
    """Check the arguments of :func:`estimate` and return the request."""
    spec = device_spec(device, card, capacity)
    settings = allocator_settings(settings)
    for name, number in {"steps": steps, "world_size": world_size}.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise UsageError(f"{name}={number!r}: it is a number, at least 1")
    if isinstance(target, kinds.model()):
        if arguments or script_args or world_size > 1:
            raise UsageError(
                "arguments, script_args and world_size are for a make_step, and this is a Keras"
                " model"
            )
        return keras_request(target, spec, keras_options)
    check_options(keras_options)
    found = program(target, script_args)
    variant = Variant(arguments=checked_arguments(arguments))
    job = Job(found.name, found, variant, "torch", search_path())
    job = replace(job, steps=steps, world_size=world_size, keras_options=keras_options)
    return StepsRequest(job, spec, settings)


def checked_arguments(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the keyword arguments of a ``make_step``."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"arguments={given!r}: give a dict of make_step's arguments")
    return dict(given)


def allocator_settings(given: str | None) -> str:
    """Return the settings of torch's allocator: those given, or the present ones."""
    settings = settings_text(os.environ) if given is None else given
    if not isinstance(settings, str):
        raise UsageError(f"settings={given!r}: give a text, as in PYTORCH_CUDA_ALLOC_CONF")
    parse_settings(settings)
    return settings


_BATCH_NAMES = ("", "batch", "batch_size")
"""Names of the batch argument; the empty name means the first argument."""


@dataclass(frozen=True)
class StepsRequest:
    """Request for a program's steps: torch's run on fake tensors, TensorFlow's are traced."""

    job: Job
    """The job; :meth:`run` sets its device and card."""
    spec: DeviceSpec
    settings: str

    def run(self, runner: Runner) -> Estimate:
        """Run the job and return the estimate."""
        job, spec = self.job, self.spec
        if job.program.is_script and job.variant.arguments:
            raise UsageError(_of_script(job.name, *job.variant.arguments))
        asked = replace(job, estimated=True, device=spec.kind, card=spec.card)
        with progress(job.name, "step", job.steps) as done:
            trace = runner.run(asked, lambda count: done(count, ""))
        if isinstance(trace, Failure):
            if trace.kind is FailureKind.USAGE:
                raise UsageError(trace.text)
            raise ProgramFailed(trace)
        assert isinstance(trace, Trace)
        if trace.batch is None and job.batch is not None and job.program.is_script:
            raise UsageError(_of_script(job.name, "batch"))
        if trace.batch is None and job.keras_options:
            raise UsageError(
                f"{', '.join(job.keras_options)}: these are arguments of Keras models, and"
                f" {job.name} makes none"
            )
        return assemble(trace, spec, job.name, self.settings)

    def with_argument(self, value: int, name: str = "") -> StepsRequest:
        """Return the request with another value of an argument; without a name, of the first."""
        if name in _BATCH_NAMES:
            return replace(self, job=replace(self.job, batch=value, batch_argument=name))
        variant = self.job.variant
        changed = replace(variant, arguments={**variant.arguments, name: value})
        return replace(self, job=replace(self.job, variant=changed))


def _of_script(name: str, *arguments: str) -> str:
    return f"{name} is a script, which takes no {', '.join(arguments)}: give a function"


def check_options(options: Mapping[str, Any]) -> None:
    """Check the options of a Keras model."""
    known = [*KerasOptions.__annotations__]
    for name in options.keys() - set(known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5) or known
        raise UsageError(f"{name}: a Keras model has no such argument; nearest: {', '.join(near)}")
    batch = options.get("batch_size", 1)
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise UsageError(f"batch_size={batch!r}: how many samples a step has, at least 1")


def keras_request(model: Any, spec: DeviceSpec, options: KerasOptions) -> KerasRequest:
    """Check the arguments of an estimate of a Keras model and return the request."""
    check_options(options)
    backend = kinds.backend()
    if backend == "torch":
        raise UsageError(
            "this Keras runs on torch: give a function that builds and returns the compiled model:"
            ' estimate("train.py:make_model", batch_size=32)'
        )
    if backend != "tensorflow":
        raise UsageError(
            f"this Keras runs on {backend}, whose memory cannot be simulated: estimates are of "
            "Keras on tensorflow or torch"
        )
    if not getattr(model, "compiled", False) and options.get("loss") is None:
        raise UsageError("the model is not compiled: give loss=, and optimizer= if not rmsprop")
    return KerasRequest(model, options, spec)


@dataclass(frozen=True)
class KerasRequest:
    """Request for the train step of a Keras model."""

    model: Any
    options: KerasOptions
    spec: DeviceSpec

    def run(self, runner: Runner) -> Estimate:
        """Trace the step in this process and return the estimate."""
        # a Keras model has imported TensorFlow already
        from tensorlens.planning.tensorflow.tracing import TraceRequest
        from tensorlens.planning.tensorflow.train_step import train_step_trace

        spec = self.spec
        asked = TraceRequest(**self.options, device=spec.kind, card=spec.card)
        try:
            trace = train_step_trace(self.model, asked)
        except TensorlensError:
            raise
        except Exception as error:
            raise TensorlensError(
                f"the train step cannot be traced: {one_line(error, 300)}"
            ) from error
        return assemble(trace, replace(spec, device=spec.kind), self.model.name)

    def with_argument(self, value: int, name: str = "") -> KerasRequest:
        """Return the request with another batch, the only argument of a model."""
        if name not in _BATCH_NAMES:
            raise UsageError(
                f"{name}: of a Keras model the batch alone varies; give a make_step that takes it"
            )
        return replace(self, options={**self.options, "batch_size": value})


Request = StepsRequest | KerasRequest
