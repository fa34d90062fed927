"""Layers that are computed again in backward instead of being kept."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tensorlens.planning.tensorflow.options import BLOCKS
from tensorlens.planning.tensorflow.options.stage import (
    CannotApply,
    Option,
    Stage,
    keras,
    missing_blocks,
    repeated_blocks,
    wrapped,
)

_NO_KEYWORDS = "supports keywords arguments only when eager"


class RecomputeBlocks(Option):
    """``tf.recompute_grad`` of each repeated block: its inputs are kept alone.

    What a block draws at random, or counts, is drawn and counted once more in backward.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._calls = 0
        keras("recompute")

    def built(self) -> None:
        """Exchange the ``call`` of each block."""
        models = self.stage.models()
        blocks = repeated_blocks(models)
        if not blocks:
            raise missing_blocks(
                "recompute=blocks",
                models,
                "no model or layer holds two or more layers of one class that have layers inside",
            )
        for block in blocks:
            self._recomputed(block)
        classes = ", ".join(sorted({type(block).__name__ for block in blocks}))
        self.stage.notes.append(f"recompute: {len(blocks)} blocks ({classes})")

    def finished(self) -> None:
        """Say so where the blocks did not run: they were traced before."""
        if not self._calls:
            raise CannotApply(
                "recompute=blocks changes nothing: no step calls a block that was not called"
                " within make_step()"
            )

    def _recomputed(self, block: Any) -> None:
        call = block.call

        @functools.wraps(call)
        def again(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            items = tf.nest.flatten((args, kwargs))
            places = [at for at, item in enumerate(items) if tf.is_tensor(item)]

            def on_tensors(*tensors: Any) -> Any:
                for at, tensor in zip(places, tensors, strict=True):
                    items[at] = tensor
                given, named = tf.nest.pack_sequence_as((args, kwargs), items)
                return call(*given, **named)

            return tf.recompute_grad(on_tensors)(*(items[at] for at in places))

        block.call = again


class RematScope(Option):
    """``keras.RematScope`` around the making of the model, in one of its modes.

    A number is its mode ``larger_than``, in elements of a layer's output; names are
    ``list_of_layers``.
    """

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._calls = 0
        library = keras("recompute")
        if not hasattr(library, "RematScope"):
            raise CannotApply(f"recompute={value} needs keras.RematScope: Keras 3.9 or later")

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Enter it."""
        scope = keras("recompute").RematScope
        if isinstance(self.value, str):
            entered = scope(mode=self.value)
        elif isinstance(self.value, int):
            entered = scope(mode="larger_than", output_size_threshold=self.value)
        else:
            entered = scope(mode="list_of_layers", layer_names=list(self.value))
        with entered, self.stepping():
            yield

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Count what is computed again."""

        def counting(recompute_grad: Any) -> Any:
            @functools.wraps(recompute_grad)
            def counted(*args: Any, **kwargs: Any) -> Any:
                self._calls += 1
                return recompute_grad(*args, **kwargs)

            return counted

        try:
            with wrapped(tf, "recompute_grad", counting):
                yield
        except ValueError as error:
            if _NO_KEYWORDS not in str(error):
                raise
            raise CannotApply(
                f"recompute={self.value}: Keras gives a layer keyword arguments (training=), with"
                " which tf.recompute_grad works in eager code only: run_eagerly=True, or blocks"
            ) from None

    def finished(self) -> None:
        """Say so where no layer was."""
        if not self._calls:
            raise CannotApply(
                f"recompute={self.value} changes nothing: keras.RematScope meets no layer of Keras"
                " that it applies to"
            )


def recompute(value: Any, stage: Stage) -> Option:
    """Return the option for a value."""
    return (RecomputeBlocks if value == BLOCKS else RematScope)(value, stage)
