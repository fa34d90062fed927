"""A traced graph as Grappler is given it when TensorFlow runs a function.

The order of what Grappler makes of a graph, and so of what runs, follows from the order of the
operations, from which of them are kept, and from their names (TensorFlow 2.21:
``core/common_runtime/process_function_library_runtime.cc``, ``core/grappler/grappler_item.cc``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.estimate.building import built
from tensorlens.frameworks.tensorflow.estimate.tracing import Traced

_READ = "/ReadVariableOp/"
_NEITHER = re.compile(r"[^a-z0-9]+")
_INPUT = re.compile(r"(\^?)([^:]+)(.*)")


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


def as_body(definition: Any, graph: Any) -> tuple[dict[str, str], list[str]]:
    """Make a graph's definition that of a function's body.

    Arguments come before all else and have the names that they are given in a function, and what
    is returned has operations of its own.

    Args:
        definition: the graph's, changed in place.
        graph: the function's graph.

    Returns:
        the new names of placeholders by their old ones, and the names of what is kept: what is
        returned, then what runs for its effects, in the order of the body.
    """
    inputs = [each.op.name for each in graph.inputs]
    names = _names(definition, inputs)
    for node in definition.node:
        node.name = names.get(node.name, node.name)
        for place, text in enumerate(node.input):
            node.input[place] = _INPUT.sub(
                lambda found: f"{found[1]}{names.get(found[2], found[2])}{found[3]}", text, count=1
            )
    arguments = [names.get(each, each) for each in inputs]
    ranks_of_arguments = {name: rank for rank, name in enumerate(arguments)}
    set_nodes(
        definition,
        sorted(
            definition.node,
            key=lambda node: ranks_of_arguments.get(node.name, len(ranks_of_arguments)),
        ),
    )
    kept = _add_returns(definition, graph, names)
    ranks = {node.name: rank for rank, node in enumerate(definition.node)}
    sources = [[ranks[source_of(text)] for text in node.input] for node in definition.node]
    set_nodes(definition, [definition.node[place] for place in built(sources)])
    effects = {op.name for op in graph.control_outputs}
    return names, [*kept, *(node.name for node in definition.node if node.name in effects)]


def source_of(text: str) -> str:
    """Return the name of the operation that an input of a definition names."""
    return text.lstrip("^").partition(":")[0]


def set_nodes(definition: Any, ordered: Sequence[Any]) -> None:
    """Put the nodes of a definition in another order."""
    texts = [node.SerializeToString() for node in ordered]
    for node, text in zip(definition.node, texts, strict=True):
        node.ParseFromString(text)


def _names(definition: Any, inputs: Sequence[str]) -> dict[str, str]:
    """Return what placeholders are called (``core/framework/graph_to_functiondef.cc``)."""
    names: dict[str, str] = {}
    taken = {node.name for node in definition.node}
    for each in inputs:
        reader, found, _ = each.rpartition(_READ)
        # a captured variable is called after the operation that reads it
        text = f"{reader}{_READ}resource" if found else each
        name = plain = _NEITHER.sub("_", text.lower()).rstrip("_")
        number = 0
        while name in taken and name != each:
            number += 1
            name = f"{plain}_{number}"
        names[each] = name
        taken.add(name)
    return names


def _add_returns(definition: Any, graph: Any, names: dict[str, str]) -> list[str]:
    found = []
    for place, each in enumerate(graph.outputs):
        node = definition.node.add()
        node.name = f"{each.op.name.lower()}_RetVal"
        node.op = "_Retval"
        node.input.append(f"{names.get(each.op.name, each.op.name)}:{each.value_index}")
        node.attr["T"].type = each.dtype.as_datatype_enum
        node.attr["index"].i = place
        node.device = definition.node[0].device
        found.append(node.name)
    return found
