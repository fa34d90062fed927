"""Collects :class:`StepFacts` of a TensorFlow program from its steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layers_of
from tensorlens.frameworks.tensorflow.recorder import module_paths
from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.heap import instances
from tensorlens.heap.attributes import MissingClass, class_name, content_of, items_of
from tensorlens.planning.patches import intercepted
from tensorlens.planning.step_facts import OptimizerFacts, RepeatedBlock, StepFacts, Watch
from tensorlens.planning.tensorflow.options import living_models, repeated_blocks

_LOW_PRECISION = ("bfloat16", "float16")
_COMMON_VARIABLES = ("iteration", "learning_rate")
"""Last path components of variables that every Keras optimizer has."""
_AVERAGES = ("_model_variables_moving_average", "_accumulated_gradients")


class StepWatch(Watch):
    """Watches the steps of a program."""

    def __init__(self) -> None:
        self._recomputes = False
        self._is_graph = False
        self._sparse_gradients: dict[int, int] = {}

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Watch the steps that run meanwhile."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(intercepted(self._recompute, (tf, "recompute_grad")))
            optimizer = kinds.optimizer()
            if optimizer is not MissingClass:
                stack.enter_context(intercepted(self._apply, (optimizer, "apply")))
            yield

    def facts(self, is_whole: bool) -> StepFacts:
        """Return the facts so far, of the models and optimizers that are alive."""
        models = living_models()
        path_of = module_paths()
        found = [(id(block), class_name(block)) for block in repeated_blocks(models)]
        computed = [getattr(layer, "compute_dtype", None) for layer in layers_of(*models)]
        return StepFacts(
            blocks=tuple(
                RepeatedBlock(path, kind)
                for address, kind in found
                if (path := path_of(address, kind)) is not None
            ),
            optimizers=tuple(map(_described, _optimizers())),
            has_low_precision=any(each in _LOW_PRECISION for each in computed),
            is_whole=is_whole,
            recomputes=self._recomputes,
            is_compiled=any(getattr(model, "compiled", False) for model in models),
            is_graph=self._is_graph,
            sparse_gradient_bytes=sum(self._sparse_gradients.values()),
        )

    def _recompute(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self._recomputes = True
        return function(*args, **kwargs)

    def _apply(self, function: Any, owner: Any, grads: Any, trainable_variables: Any = None) -> Any:
        # a failure must not reach the program
        with contextlib.suppress(Exception):
            self._look(owner, grads, trainable_variables)
        return function(owner, grads, trainable_variables)

    def _look(self, owner: Any, grads: Any, given: Any) -> None:
        """Note whether steps run as a graph; of eager steps, note the sparse gradients."""
        self._is_graph = not tf.executing_eagerly()
        if self._is_graph:
            return
        parameters = given or items_of(content_of(owner).get("_trainable_variables"))
        if not isinstance(grads, (list, tuple)) or not isinstance(parameters, (list, tuple)):
            # an iterator can be read once, by the optimizer
            return
        for gradient, parameter in zip(grads, parameters, strict=False):
            if isinstance(gradient, tf.IndexedSlices):
                self._sparse_gradients[id(parameter)] = _nbytes(parameter)


def _optimizers() -> list[Any]:
    found = instances(kinds.optimizer())
    # LossScaleOptimizer itself has next to no state
    return [each for each in found if content_of(each).get("inner_optimizer") is None]


def _described(optimizer: Any) -> OptimizerFacts:
    content = content_of(optimizer)
    aside = {id(each) for name in _AVERAGES for each in items_of(content.get(name))}
    kept = [
        each
        for each in items_of(content.get("_variables"))
        if id(each) not in aside and not str(each.path).endswith(_COMMON_VARIABLES)
    ]
    return OptimizerFacts(
        kind=class_name(optimizer),
        momentum=bool(content.get("momentum")),
        state=sum(map(_nbytes, kept)),
        rate=_rate(content.get("_learning_rate")),
    )


def _rate(variable: Any) -> float | None:
    """Return the value of a learning rate; None for a schedule."""
    try:
        # 0.001, not its nearest float32
        return float(f"{float(variable.numpy()):.6g}")
    except Exception:
        return None


def _nbytes(variable: Any) -> int:
    return nbytes(variable.shape, tf.as_dtype(variable.dtype).name)
