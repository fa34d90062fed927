"""Optimizers exchanged for others as they are made: Keras's, and those of v1 graphs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tensorlens.planning.patches import accepted, exchanging
from tensorlens.planning.tensorflow.options.stage import CannotApply, Option, Stage

_KERAS = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "rmsprop": "RMSprop",
    "adafactor": "Adafactor",
    "lion": "Lion",
}
_V1 = {
    "sgd": "GradientDescentOptimizer",
    "adam": "AdamOptimizer",
    "rmsprop": "RMSPropOptimizer",
}
_KEPT = (
    *("learning_rate", "weight_decay", "momentum", "beta_1", "beta_2", "beta1", "beta2"),
    *("epsilon", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum"),
    *("ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps"),
)
"""Arguments that the other optimizer is given as well, where it takes them."""
_RATE = {"sgd": 0.01, "adam": 0.001, "rmsprop": 0.001}
"""Of optimizers of v1 graphs, where none is given: not all have one by default. Keras's."""
_WRAPS = "inner_optimizer"


class Optimizer(Option):
    """Every optimizer that the program makes is of the class asked for.

    A learning rate that is given stays, and so do the other arguments that the class takes.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._made = 0

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Make the optimizers that are asked for in the place of others."""
        keras = sys.modules.get("keras")
        with contextlib.ExitStack() as stack:
            if keras is not None:
                stack.enter_context(exchanging(keras.optimizers.Optimizer, self._of_keras))
            stack.enter_context(exchanging(tf.compat.v1.train.Optimizer, self._of_graphs))
            yield
        if not self._made:
            raise CannotApply(
                "make_step() makes no optimizer of Keras or of v1 graphs: there is none to change"
            )

    def _of_keras(self, cls: type, given: dict[str, Any]) -> Any:
        if _WRAPS in given:
            # it scales the loss for another one, which has been exchanged
            return cls(**given)
        name = _KERAS[self.value]
        kind = getattr(sys.modules["keras"].optimizers, name, None)
        if kind is None:
            raise CannotApply(f"optimizer={self.value}: this Keras has no {name}")
        return self._of(kind, cls, given)

    def _of_graphs(self, cls: type, given: dict[str, Any]) -> Any:
        name = _V1.get(self.value)
        if name is None:
            raise CannotApply(
                f"optimizer={self.value}: v1 graphs have {', '.join(_V1)}, not this one"
            )
        kind = getattr(tf.compat.v1.train, name)
        return self._of(kind, cls, {"learning_rate": _RATE[self.value], **given})

    def _of(self, kind: type, cls: type, given: dict[str, Any]) -> Any:
        self._made += 1
        return kind(**accepted(kind, given, tuple(given) if kind is cls else _KEPT))
