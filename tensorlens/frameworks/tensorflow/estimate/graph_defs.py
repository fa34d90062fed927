"""Definitions of graphs, as TensorFlow's optimizer is given them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.estimate.tracing import Traced


def set_arguments(definition: Any, traced: Traced) -> None:
    """Let a step's arguments tell their shapes.

    Grappler takes placeholders, and the arguments of functions too where it is called from Python,
    for something that is fed and may have any shape (``core/grappler/costs/graph_properties.cc``,
    ``InferStatically``).

    Args:
        definition: the graph's, changed in place: a handle stands for each variable, and for
            each other argument ``InfeedDequeue``, which has a shape, reads nothing, and is never
            folded or merged, as it has a state.
        traced: the step.
    """
    variables = {each.placeholder: each for each in traced.variables}
    tensors = {each.op.name: each for each in traced.graph.inputs}
    for node in definition.node:
        tensor = tensors.get(node.name)
        if tensor is None:
            continue
        variable = variables.get(node.name)
        dtype, shape = tensor.dtype, tensor.shape
        if variable is not None:
            dtype, shape = tf.as_dtype(variable.dtype), tf.TensorShape(variable.shape)
        node.op = "InfeedDequeue" if variable is None else "VarHandleOp"
        node.attr.clear()
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["shape"].shape.CopyFrom(shape.as_proto())
        if variable is not None:
            node.attr["shared_name"].s = node.name.encode()


def source_of(text: str) -> str:
    """Return the name of the operation that an input of a definition names."""
    return text.lstrip("^").partition(":")[0]


def set_nodes(definition: Any, nodes: Sequence[Any]) -> None:
    """Let a definition have these nodes, of its own, in this order."""
    texts = [node.SerializeToString() for node in nodes]
    del definition.node[:]
    for text in texts:
        definition.node.add().ParseFromString(text)
