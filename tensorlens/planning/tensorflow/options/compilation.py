"""The option that sets how functions run: by XLA, as graphs, or operation by operation."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensorlens.planning.tensorflow.options.stage import CannotApply, Option, Stage, wrapped

_OF_XLA = ("XLA", "tf2xla", "jit_compile", "compile-time constant", "xla")


class JitCompile(Option):
    """``jit_compile`` of every model that is compiled and of every ``tf.function`` that is made."""

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._count = 0
        if stage.estimated:
            raise CannotApply("jit_compile: XLA plans its memory when it compiles; measure it")

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Exchange the argument."""
        with (
            _compile_arguments({"jit_compile": self.value}, self._add_call),
            wrapped(polymorphic_function.Function, "__init__", self._with_argument),
        ):
            yield

    def built(self) -> None:
        """Say so where there was nothing to compile."""
        if not self._count:
            raise CannotApply(
                "jit_compile changes nothing: make_step() compiles no model and makes no"
                " tf.function"
            )

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Say what XLA cannot compile."""
        try:
            yield
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            text = str(error)
            if self.value and any(mark in text for mark in _OF_XLA):
                reason = " ".join(text.split())[:200]
                raise CannotApply(f"jit_compile: XLA refuses it: {reason}") from None
            raise

    def _add_call(self) -> None:
        self._count += 1

    def _with_argument(self, init: Any) -> Any:
        @functools.wraps(init)
        def __init__(function: Any, python_function: Any, *args: Any, **kwargs: Any) -> None:
            # those of Keras are told by its models, and some of them cannot be compiled
            if not str(getattr(python_function, "__module__", "")).startswith("keras."):
                self._count += 1
                kwargs["jit_compile"] = self.value
            init(function, python_function, *args, **kwargs)

        return __init__


class RunEagerly(Option):
    """``run_eagerly`` of every model that is compiled, and of ``tf.function`` as a whole."""

    def __init__(self, value: Any, stage: Stage) -> None:
        super().__init__(value, stage)
        self._count = 0

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Exchange the argument, and have functions run so."""
        arguments = {"run_eagerly": self.value, **({"jit_compile": False} if self.value else {})}
        with _compile_arguments(arguments, self._add_call), self.stepping():
            yield

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Have functions run so."""
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(self.value)
        try:
            with wrapped(polymorphic_function.Function, "__call__", self._call_counter):
                yield
        finally:
            tf.config.run_functions_eagerly(before)

    def finished(self) -> None:
        """Say so where nothing was compiled and no function called."""
        if not self._count:
            raise CannotApply(
                "run_eagerly changes nothing: no model is compiled and no tf.function called"
            )

    def _add_call(self) -> None:
        self._count += 1

    def _call_counter(self, call: Any) -> Any:
        @functools.wraps(call)
        def __call__(function: Any, *args: Any, **kwargs: Any) -> Any:
            self._count += 1
            return call(function, *args, **kwargs)

        return __call__


@contextlib.contextmanager
def _compile_arguments(arguments: dict[str, Any], on_call: Callable[[], None]) -> Iterator[None]:
    """Give arguments to every ``compile`` of a Keras model."""
    keras = sys.modules.get("keras")
    if keras is None:
        yield
        return

    def with_arguments(compile_model: Any) -> Any:
        @functools.wraps(compile_model)
        def compile(model: Any, *args: Any, **kwargs: Any) -> Any:
            on_call()
            # by position they would be the sixth and later ones: nobody gives them so
            return compile_model(model, *args, **{**kwargs, **arguments})

        return compile

    with wrapped(keras.Model, "compile", with_arguments):
        yield
