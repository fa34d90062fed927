"""Options to try in TensorFlow: optimizer, policy, recompute, jit_compile, run_eagerly."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layers_of
from tensorlens.guards import one_line
from tensorlens.heap import instances
from tensorlens.heap.attributes import content_of, items_of
from tensorlens.planning.patches import accepted, exchanging, intercepted
from tensorlens.planning.trials import stage
from tensorlens.planning.trials.jobs import CannotApply
from tensorlens.planning.trials.stage import Stage

Option = stage.Option[Stage]


def living_models() -> list[Any]:
    """Return the outermost Keras layers that contain layers, oldest first.

    All layers that are alive count; none of their code runs.
    """
    found = instances(kinds.layer())
    inside = {id(child) for layer in found for child in children_of(layer)}
    return [layer for layer in found if id(layer) not in inside and children_of(layer)]


def children_of(layer: Any) -> list[Any]:
    """Return the direct sublayers of a layer; none of its code runs."""
    found = items_of(content_of(layer).get("_layers"))
    return [each for each in found if issubclass(type(each), kinds.layer())]


def repeated_blocks(models: Sequence[Any]) -> list[Any]:
    """Return the outermost repeated blocks of models.

    A block is a layer that contains layers, with a sibling of the same class.
    """
    return stage.repeated_blocks(models, children_of)


def keras(setting: str) -> Any:
    """Return Keras.

    Raises:
        CannotApply: Keras is missing, or runs on another backend.
    """
    try:
        found = importlib.import_module("keras")
    except ImportError:
        raise CannotApply(f"{setting} needs Keras 3, which is not installed") from None
    backend = found.config.backend() if hasattr(found, "config") else ""
    if backend != "tensorflow":
        raise CannotApply(f"{setting}: this Keras runs on {backend or 'an old TensorFlow'}")
    return found


_CLASSES = ("SGD", "Adam", "AdamW", "RMSprop", "Adafactor", "Lion")
_KEPT = (
    *("learning_rate", "weight_decay", "momentum", "beta_1", "beta_2"),
    *("epsilon", "clipnorm", "clipvalue", "global_clipnorm", "use_ema", "ema_momentum"),
    *("ema_overwrite_frequency", "loss_scale_factor", "gradient_accumulation_steps"),
)
"""Arguments of the program's optimizer that the other class is given too, if it takes them."""
_INNER = "inner_optimizer"


class Optimizer(Option):
    """Replaces the class of every optimizer that the program makes.

    Another class is given the program's arguments in :data:`_KEPT`, if it takes them.
    """

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Make optimizers of the requested class."""
        with exchanging(keras("optimizer").optimizers.Optimizer, self._exchanged):
            yield
        if not self.use_count:
            raise CannotApply("make_step() makes no optimizer of Keras: there is none to change")

    def _exchanged(self, cls: type, given: dict[str, Any]) -> Any:
        if _INNER in given:
            # LossScaleOptimizer: the one inside has been exchanged already
            return cls(**given)
        name = next(each for each in _CLASSES if each.lower() == self.value)
        kind = getattr(keras("optimizer").optimizers, name)
        self.count_use()
        return kind(**accepted(kind, given, tuple(given) if kind is cls else _KEPT))


class Policy(Option):
    """The dtype policy of the layers that are made: the dtypes of their weights and outputs.

    With ``mixed_float16`` Keras scales the loss of compiled models; custom loops must do it.
    """

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Set the policy while the model is made, and restore the previous one.

        Layers take it even if the program, or a module that it imports, sets another meanwhile.
        """
        library = keras("policy")
        before = library.config.dtype_policy()
        library.config.set_dtype_policy(self.value)
        try:
            with intercepted(self._with_policy, (library.layers.Layer, "__init__")):
                yield
        finally:
            library.config.set_dtype_policy(before)

    def _with_policy(self, init: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("dtype") is None:
            kwargs["dtype"] = self.value
        init(layer, *args, **kwargs)

    def built(self) -> None:
        """Check that a layer has the policy."""
        names = {layer.dtype_policy.name for layer in layers_of(*living_models())}
        if self.value not in names:
            has = ", ".join(sorted(names)) or "there is no model of Keras"
            raise CannotApply(f"policy={self.value} changes nothing: no layer has it ({has})")


class RecomputeBlocks(Option):
    """Wraps each repeated block in ``tf.recompute_grad``: only its inputs are kept.

    Random numbers of a block are drawn again in backward, and its counters count twice.
    """

    unused = (
        "recompute=blocks changes nothing: no step calls a block that was not called within"
        " make_step()"
    )

    def __init__(self, value: Any, program: Stage) -> None:
        super().__init__(value, program)
        keras("recompute")

    def built(self) -> None:
        """Replace the ``call`` of each block."""
        models = living_models()
        blocks = repeated_blocks(models)
        if not blocks:
            raise stage.missing_blocks(
                "recompute=blocks",
                models,
                "no model or layer holds two or more layers of one class that have layers inside",
            )
        for block in blocks:
            self._wrap_call(block)
        classes = ", ".join(sorted({type(block).__name__ for block in blocks}))
        self.stage.notes.append(f"recompute: {len(blocks)} blocks ({classes})")

    def _wrap_call(self, block: Any) -> None:
        call = block.call

        @functools.wraps(call)
        def recomputed(*args: Any, **kwargs: Any) -> Any:
            self.count_use()
            items = tf.nest.flatten((args, kwargs))
            places = [at for at, item in enumerate(items) if tf.is_tensor(item)]

            def on_tensors(*tensors: Any) -> Any:
                for at, tensor in zip(places, tensors, strict=True):
                    items[at] = tensor
                given, named = tf.nest.pack_sequence_as((args, kwargs), items)
                return call(*given, **named)

            return tf.recompute_grad(on_tensors)(*(items[at] for at in places))

        block.call = recomputed


_XLA_WORDS = ("XLA", "xla", "jit_compile", "compile-time constant")


class JitCompile(Option):
    """Sets ``jit_compile`` of each model that is compiled and each ``tf.function`` that is made."""

    def __init__(self, value: Any, program: Stage) -> None:
        super().__init__(value, program)
        if program.estimated and value:
            raise CannotApply("jit_compile: XLA plans its memory when it compiles; measure it")

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Set the argument."""
        with (
            _compile_arguments({"jit_compile": self.value}, self.count_use),
            intercepted(self._with_argument, (polymorphic_function.Function, "__init__")),
        ):
            yield

    def built(self) -> None:
        """Check that there was something to compile."""
        if not self.use_count:
            raise CannotApply(
                "jit_compile changes nothing: make_step() compiles no model and makes no"
                " tf.function"
            )

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Report operations that XLA cannot compile."""
        try:
            yield
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            text = str(error)
            if self.value and any(mark in text for mark in _XLA_WORDS):
                raise CannotApply(f"jit_compile: XLA refuses it: {one_line(error, 200)}") from None
            raise

    def _with_argument(
        self, init: Any, function: Any, python_function: Any, *args: Any, **kwargs: Any
    ) -> None:
        # Keras's own functions follow its models; some of them cannot be compiled
        if not str(getattr(python_function, "__module__", "")).startswith("keras."):
            self.count_use()
            kwargs["jit_compile"] = self.value
        init(function, python_function, *args, **kwargs)


class RunEagerly(Option):
    """Sets ``run_eagerly`` of each model that is compiled, and for ``tf.function`` as a whole."""

    unused = "run_eagerly changes nothing: no model is compiled and no tf.function called"

    @contextlib.contextmanager
    def building(self) -> Iterator[None]:
        """Set the argument and the global flag."""
        arguments = {"run_eagerly": self.value, **({"jit_compile": False} if self.value else {})}
        with _compile_arguments(arguments, self.count_use), self.stepping():
            yield

    @contextlib.contextmanager
    def stepping(self) -> Iterator[None]:
        """Set the global flag."""
        before = tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(self.value)
        try:
            with intercepted(self._counted, (polymorphic_function.Function, "__call__")):
                yield
        finally:
            tf.config.run_functions_eagerly(before)

    def _counted(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        self.count_use()
        return call(*args, **kwargs)


@contextlib.contextmanager
def _compile_arguments(arguments: dict[str, Any], on_call: Callable[[], None]) -> Iterator[None]:
    """Override arguments of every ``compile`` of a Keras model."""
    keras = sys.modules.get("keras")
    if keras is None:
        yield
        return

    def with_arguments(compile_model: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        on_call()
        # nobody passes these by position: they come sixth and later
        return compile_model(model, *args, **{**kwargs, **arguments})

    with intercepted(with_arguments, (keras.Model, "compile")):
        yield


OPTIONS: Mapping[str, type[Option]] = {
    "policy": Policy,
    "optimizer": Optimizer,
    "recompute": RecomputeBlocks,
    "jit_compile": JitCompile,
    "run_eagerly": RunEagerly,
}
"""Setting to its option, in the order in which they are applied."""
