"""``estimate()`` of a Keras model on TensorFlow, whose train step is traced."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.frameworks.keras import kinds
from tensorlens.guards import one_line
from tensorlens.planning.estimate.assembly import assemble
from tensorlens.planning.estimate.cards import DeviceSpec
from tensorlens.planning.estimate.result import Estimate
from tensorlens.planning.estimate.target import BATCHES
from tensorlens.planning.processes import Runner

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
        return assemble(
            trace,
            device=spec.kind,
            card=spec.card,
            capacity=spec.capacity,
            program=self.model.name,
        )

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
