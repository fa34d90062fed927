"""Settings of a model while it is made: Keras's policy of dtypes, and another optimizer."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tensorlens.planning.patches import accepted, exchanging, wrapped
from tensorlens.planning.tensorflow.options.stage import (
    CannotApply,
    Option,
    Stage,
    keras,
    layers_of,
)

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
        library = sys.modules.get("keras")
        with contextlib.ExitStack() as stack:
            if library is not None:
                stack.enter_context(exchanging(library.optimizers.Optimizer, self._of_keras))
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


class Policy(Option):
    """The policy while the model is made: in what dtype layers compute and keep their weights.

    With ``mixed_float16`` Keras scales the loss of what is compiled; a loop of one's own has to.
    """

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Set it, and what there was before when the model is made.

        A layer takes it from here, whatever the program sets meanwhile, as a module that it
        imports may.
        """
        library = keras("policy")
        before = library.config.dtype_policy()
        library.config.set_dtype_policy(self.value)
        try:
            with wrapped(library.layers.Layer, "__init__", self._of_layers):
                yield
        finally:
            library.config.set_dtype_policy(before)

    def _of_layers(self, init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def with_policy(layer: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("dtype") is None:
                kwargs["dtype"] = self.value
            init(layer, *args, **kwargs)

        return with_policy

    def built(self) -> None:
        """Say so where no layer took it."""
        names = {layer.dtype_policy.name for layer in layers_of(self.stage.models())}
        if self.value not in names:
            has = ", ".join(sorted(names)) or "there is no model of Keras"
            raise CannotApply(f"policy={self.value} changes nothing: no layer has it ({has})")
