"""Tensors that a gradient tape keeps of a forward pass, and until when.

A tape keeps of each operation the inputs and outputs that its gradient function reads, until
backward has run that function (``c/eager/tape.h`` of TensorFlow 2.21). They are seen here as the
tape hands them to the gradient functions of a step that is being traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from tensorlens.frameworks.tensorflow.attribution.eager_gradients import follow_gradients

_GRADIENT = "_gradient_op_type"
_LOGITS = "_keras_logits"
"""Attribute by which Keras has the result of a sigmoid or a softmax refer to what it was computed
from, for losses (``backend/tensorflow/nn.py`` of Keras 3)."""


@dataclass(frozen=True, slots=True)
class GradientCall:
    """One call of a gradient function; operations by name, those of others left out."""

    graph: Any
    kept: Sequence[str]
    """Tensors that the tape kept for it, and the gradients it was given."""
    end: int
    """How many operations the graph had when it returned."""


@contextmanager
def gradient_notes(found: list[GradientCall]) -> Iterator[None]:
    """Take note of gradient functions while it is entered; they do what they always do."""

    def note(begin: int, arguments: tuple[Any, ...]) -> None:
        graph = tf.compat.v1.get_default_graph()
        tensors = [each for group in arguments[3:6] for each in group or ()]
        kept = [each.op.name for each in tensors if getattr(each, "graph", None) is graph]
        found.append(GradientCall(graph, kept, graph.version))

    end = follow_gradients(note)
    try:
        yield
    finally:
        end()


def forget_gradients(graph: Any) -> None:
    """Take what a graph's custom gradients left in TensorFlow's registry out of it again.

    ``tf.custom_gradient`` registers one for each call that is traced, for ever, and it holds the
    graph and all the weights that this captured.
    """
    definition = graph.as_graph_def()
    functions = (each.node_def for each in definition.library.function)
    for node in chain(definition.node, *functions):
        name = node.attr[_GRADIENT].s.decode() if _GRADIENT in node.attr else ""
        if name.startswith("CustomGradient-"):
            ops.gradient_registry._registry.pop(name, None)


def kept_until(calls: Sequence[GradientCall], numbers: Mapping[str, int]) -> Mapping[int, int]:
    """Return until which operation's end Python keeps the results of each.

    Args:
        calls: of the step's own graph.
        numbers: of the operations, by name.
    """
    found: dict[int, int] = {}
    for call in calls:
        for name in call.kept:
            if name in numbers:
                found[numbers[name]] = max(found.get(numbers[name], 0), call.end - 1)
    return found


def held_by_results(graph: Any) -> Mapping[str, str]:
    """Return operations whose results Python has refer to those of another one, by name."""
    found = {}
    for operation in graph.get_operations():
        for each in operation.outputs:
            held: Any = getattr(each, _LOGITS, None)
            if getattr(held, "graph", None) is graph:
                found[operation.name] = held.op.name
    return found
