"""The graph that really runs: what TensorFlow's optimizer of graphs makes of the traced one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.framework import meta_graph

from tensorlens.frameworks.tensorflow.estimate import grappler
from tensorlens.frameworks.tensorflow.estimate.graph_defs import (
    set_arguments,
    set_nodes,
    source_of,
)
from tensorlens.frameworks.tensorflow.estimate.lowering import LOOPS, TRAIN, lowered
from tensorlens.frameworks.tensorflow.estimate.nodes import Node, Output, Shape, connect
from tensorlens.frameworks.tensorflow.estimate.tracing import Traced

_PLAIN = ("s", "i", "f", "b")
_FUSING = ("remapping",)
_FEW = 16


def optimized(traced: Traced) -> list[Node]:
    """Return the operations that run, in the order in which they were traced.

    TensorFlow's own optimizer (Grappler) is run on the graph: it folds constants, fuses, merges
    what is the same, and leaves out what nobody reads. The order of what it gives depends on the
    names of layers too, so it is not kept.
    """
    graph = traced.graph
    definition = graph.as_graph_def()
    set_arguments(definition, traced)
    for node in definition.node:
        node.device = grappler.HOST
    kept = [each.op.name for each in graph.outputs] + [op.name for op in graph.control_outputs]
    given = meta_graph.create_meta_graph_def(graph_def=definition, graph=None)
    given.collection_def[TRAIN].node_list.value.extend(dict.fromkeys(kept))
    try:
        nodes = _optimized(given, ())
    except (ValueError, tf.errors.InvalidArgumentError):
        # in bfloat16 there are kernels for what is fused, but no such operation for Python
        nodes = _optimized(given, _FUSING)
    arguments = {each.op.name: place for place, each in enumerate(graph.inputs)}
    for node in nodes:
        if node.name in arguments:
            node.op, node.attrs = "_Arg", {"index": arguments[node.name]}
    return nodes


def _optimized(given: Any, without: Sequence[str]) -> list[Node]:
    names = [node.name for node in given.graph_def.node]
    if any(node.op in LOOPS for node in given.graph_def.node):
        given = lowered(given, _settings())
    found = grappler.optimize(_settings(without), given)
    _sort(found, names)
    return nodes_of(found)


def _settings(without: Sequence[str] = ()) -> Any:
    settings = config_pb2.ConfigProto()
    options = settings.graph_options.rewrite_options
    options.min_graph_nodes = -1
    for each in without:
        setattr(options, each, rewriter_config_pb2.RewriterConfig.OFF)
    return settings


def _sort(found: Any, traced: Sequence[str]) -> None:
    """Sort operations as they were traced; new ones come behind the last of what they read."""
    ranks = {name: rank for rank, name in enumerate(traced)}
    sources = {
        node.name: [source_of(text) for text in node.input]
        for node in found.node
        if node.name not in ranks
    }
    while sources:
        ready = [name for name, each in sources.items() if all(one in ranks for one in each)]
        # none is ready in the circle of a loop
        for name in ready or list(sources):
            known = (ranks[one] for one in sources.pop(name) if one in ranks)
            ranks[name] = max(known, default=-1)
    ordered = sorted(found.node, key=lambda node: ranks[node.name])
    set_nodes(found, ordered)


def as_traced(traced: Traced) -> list[Node]:
    """Return the operations as they were traced, in the order of the program."""
    return nodes_of(traced.graph.as_graph_def(), traced.graph)


def nodes_of(definition: Any, graph: Any = None) -> list[Node]:
    """Return the operations of a graph's definition with the shapes of what they make.

    Args:
        definition: the graph.
        graph: one with operations of the same names and results; None: it has to be built.
    """
    if graph is None:
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(definition, name="")
    numbers = {node.name: number for number, node in enumerate(definition.node)}
    found = [
        _node(number, node, numbers, graph.get_operation_by_name(node.name).outputs)
        for number, node in enumerate(definition.node)
    ]
    connect(found)
    return found


def _node(number: int, node: Any, numbers: Mapping[str, int], outputs: Sequence[Any]) -> Node:
    inputs, controls = [], []
    for text in node.input:
        if text.startswith("^"):
            controls.append(numbers[text[1:]])
        else:
            name, _, slot = text.partition(":")
            inputs.append((numbers[name], int(slot or 0)))
    attrs = {key: _plain(value) for key, value in node.attr.items() if key != "value"}
    made = [Output(output.dtype.name, _shape(output.shape)) for output in outputs]
    found = _constant(node, made[0]) if node.op == "Const" else None
    scalar, row = (None, tuple(found)) if isinstance(found, list) else (found, None)
    return Node(number, node.name, node.op, inputs, controls, made, attrs, scalar, row)


def _constant(node: Any, made: Output) -> Any:
    """Return the number of a scalar, or a list of a few; None of what decides nothing."""
    if made.dtype not in ("int32", "int64", "bool") or made.shape is None or len(made.shape) > 1:
        return None
    if prod(made.shape) > _FEW:
        return None
    return tf.make_ndarray(node.attr["value"].tensor).tolist()


def _shape(shape: Any) -> Shape | None:
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "s":
        return value.s.decode("utf-8", "replace")
    if kind in _PLAIN:
        return getattr(value, kind)
    if kind == "type":
        return tf.as_dtype(value.type).name
    if kind == "list":
        whole = value.list
        return [*whole.i, *(each.decode("utf-8", "replace") for each in whole.s), *whole.f]
    return None
