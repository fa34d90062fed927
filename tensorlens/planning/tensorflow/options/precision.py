"""Keras's policy of dtypes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from tensorlens.planning.tensorflow.options.stage import (
    CannotApply,
    Option,
    keras,
    layers_of,
    wrapped,
)


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
