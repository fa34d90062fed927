"""Keras's policy of dtypes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorlens.frameworks.tensorflow.options.keras_here import keras
from tensorlens.frameworks.tensorflow.options.stage import CannotApply, Option, layers_of


class Policy(Option):
    """The policy while the model is made: in what dtype layers compute and keep their weights.

    With ``mixed_float16`` Keras scales the loss of what is compiled; a loop of one's own has to.
    """

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Set it, and what there was before when the model is made."""
        config = keras("policy").config
        before = config.dtype_policy()
        config.set_dtype_policy(self.value)
        try:
            yield
        finally:
            config.set_dtype_policy(before)

    def built(self) -> None:
        """Say so where no layer took it."""
        names = {layer.dtype_policy.name for layer in layers_of(self.stage.models())}
        if self.value not in names:
            has = ", ".join(sorted(names)) or "there is no model of Keras"
            raise CannotApply(f"policy={self.value} changes nothing: no layer has it ({has})")
