"""``estimate()`` of a Keras model: of TensorFlow one train step is traced, without any data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.estimating.assembling import assemble
from tensorlens.estimating.cards import find_card
from tensorlens.estimating.keras_on_torch import KerasOnTorch
from tensorlens.estimating.questions import settings_of
from tensorlens.estimating.worker import Worker
from tensorlens.records.cards import Card
from tensorlens.records.estimates import Estimate
from tensorlens.units import format_bytes, parse_bytes

AboutKeras: TypeAlias = "KerasQuestion | KerasOnTorch"


def is_keras_model(thing: Any) -> bool:
    """Tell whether it is a Keras model; Keras is not imported for it."""
    keras = sys.modules.get("keras")
    model = getattr(keras, "Model", None)
    return isinstance(model, type) and isinstance(thing, model)


@dataclass(frozen=True)
class KerasQuestion:
    """What is asked of a Keras model whose backend is TensorFlow, checked."""

    model: Any
    batch: int
    options: Mapping[str, Any]
    device: str
    card: Card | None
    capacity: int | None

    def ask(self, worker: Worker) -> Estimate:
        """Trace the step and return the answer.

        Args:
            worker: a process for fake steps, of which there is no need here.

        Raises:
            UsageError: the shapes of the model's inputs are not known.
            TensorlensError: the train step cannot be traced.
        """
        # TensorFlow is there already, or there would be no model
        from tensorlens.frameworks.tensorflow.estimate.asked import Asked
        from tensorlens.frameworks.tensorflow.estimate.run import run

        asked = Asked(self.batch, device=self.device, card=self.card, **self.options)
        try:
            trace = run(self.model, asked)
        except TensorlensError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise TensorlensError(f"the train step cannot be traced: {reason}") from error
        found = assemble(
            trace,
            device=self.device,
            card=self.card,
            settings="",
            capacity=self.capacity,
            program=f"{self.model.name} without XLA" if trace.unsimulated else self.model.name,
        )
        return replace(found, batch=self.batch)

    def with_batch(self, batch: int) -> KerasQuestion:
        """Return the same question for another batch."""
        return replace(self, batch=batch)


def keras_question(
    model: Any,
    *,
    batch_size: int = 32,
    optimizer: Any = None,
    loss: Any = None,
    policy: str | None = None,
    run_eagerly: bool | None = None,
    input_shape: Any = None,
    input_dtype: str | None = None,
    device: str = "cuda",
    card: str | Card | None = None,
    capacity: int | str | None = None,
    steps: int = 2,
    settings: str | None = None,
) -> AboutKeras:
    """Return what is asked of a model, with everything checked that can be without tracing.

    Raises:
        UsageError: something of it makes no sense; one line says what.
    """
    backend = _backend()
    if backend not in ("tensorflow", "torch"):
        raise UsageError(
            f"this Keras runs on {backend}, whose memory cannot be simulated: estimates are of "
            "Keras on tensorflow or torch"
        )
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size={batch_size!r}: how many samples a step has, at least 1")
    if device.partition(":")[0] not in ("cuda", "cpu"):
        raise UsageError(f"device={device!r}: cuda and cpu can be estimated")
    if not getattr(model, "compiled", False) and loss is None:
        raise UsageError("the model is not compiled: give loss=, and optimizer= if not rmsprop")
    on_host = device.partition(":")[0] == "cpu"
    found = None if on_host else find_card(card)
    wanted = None if capacity is None else parse_bytes(capacity)
    if card is not None and found is not None and wanted is not None and wanted > found.memory:
        raise UsageError(
            f"capacity={capacity}: a {found.name} has {format_bytes(found.memory)}; leave one of"
            " them out"
        )
    options = {
        "optimizer": optimizer,
        "loss": loss,
        "policy": policy,
        "input_shape": input_shape,
        "input_dtype": input_dtype,
    }
    place = "cpu" if on_host else "cuda"
    if backend == "torch":
        options["run_eagerly"] = run_eagerly
        return KerasOnTorch(
            model, batch_size, options, place, found, wanted, steps, settings_of(settings)
        )
    eager = bool(getattr(model, "run_eagerly", False)) if run_eagerly is None else run_eagerly
    options["eager"] = eager
    return KerasQuestion(model, batch_size, options, place, found, wanted)


def _backend() -> str:
    keras = sys.modules["keras"]
    return str(keras.config.backend())
