"""The graph that really runs: what grappler and the lowering of loops make of the traced one."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2
from tensorflow.python.framework import meta_graph
from tensorflow.python.grappler import cluster, tf_optimizer

from tensorlens.planning.tensorflow.graph import optimizing
from tensorlens.planning.tensorflow.graph.nodes import Node, Output, Shape, connect
from tensorlens.planning.tensorflow.graph.tracing import TracedStep


def set_arguments(definition: Any, traced: TracedStep) -> None:
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


HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


def optimize(settings: Any, given: Any) -> Any:
    """Return the graph that Grappler makes of one.

    Args:
        settings: a ``ConfigProto``.
        given: a ``MetaGraphDef``.
    """
    return tf_optimizer.OptimizeGraph(settings, given, verbose=False, cluster=_host())


@cache
def _host() -> Any:
    """Return this machine's CPU: without it each graph starts a session, and says so."""
    # how fast it is decides nothing, but has to be told
    properties = device_properties_pb2.DeviceProperties(
        type="CPU", num_cores=os.cpu_count() or 1, frequency=1000
    )
    device = device_properties_pb2.NamedDevice(name=HOST, properties=properties)
    return cluster.Cluster(devices=[device])


TRAIN = "train_op"
"""Where a graph lists what is to be kept of it."""
LOOPS = ("While", "StatelessWhile")
_WAITS = "/LoopControlInputs/_"
_BEGINS = re.compile(r"/(cond|body)/_\d+/input_control_node/_\d+$")
"""In the names of what a loop, and each run of its condition and of its body, waits for."""
_RUNS = "/loop_body_control/_"


def lowered(given: Any, settings: Any) -> Any:
    """Return a graph in which loops are what an executor runs.

    TensorFlow lowers the loops of a function before it optimizes it, and nothing keeps one from
    beginning before all that it reads is there (``core/common_runtime/lower_functional_ops.cc``,
    ``lower_while_op.cc``). Grappler lowers with the same code, but lets a loop that reads variables
    wait, and each run of its condition and of its body (``AddStrictInputSemantics`` in
    ``core/grappler/optimizers/function_optimizer.cc``): that is undone here.
    """
    loops = [node for node in given.graph_def.node if node.op in LOOPS]
    found = type(given)()
    found.CopyFrom(given)
    kept = found.collection_def[TRAIN].node_list.value
    names = list(kept)
    gone = {loop.name for loop in loops}
    kept[:] = [name for name in names if name not in gone]
    options = settings.graph_options.rewrite_options
    options.optimizers.append("function")
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    options.disable_model_pruning = True
    graph = optimizing.optimize(settings, found)
    free = {loop.name for loop in loops if not any(text[0] == "^" for text in loop.input)}
    _let_begin(graph, free)
    found.graph_def.CopyFrom(graph)
    kept[:] = names
    return found


def _let_begin(graph: Any, free: Collection[str]) -> None:
    """Have loops and what runs in them wait for nothing but what TensorFlow lets them wait for.

    Args:
        graph: with lowered loops, changed in place.
        free: loops that come after no other operation.
    """
    ops = {node.name: node.op for node in graph.node}
    waits = {name for name in ops if _WAITS in name and name.rpartition(_WAITS)[0] in free}
    nodes = [node for node in graph.node if node.name not in waits]
    for node in nodes:
        texts = [text for text in node.input if text[1:] not in waits]
        node.input[:] = _first(texts, ops) if _BEGINS.search(node.name) else texts
    set_nodes(graph, nodes)


def _first(texts: Sequence[str], ops: Mapping[str, str]) -> Sequence[str]:
    """Return what begins a run: of a body the loop's condition, of a condition a value of it."""
    conditions = [text for text in texts if _RUNS in text]
    values = [text for text in texts if ops[text[1:]] == "Merge"]
    return conditions or sorted(values, key=lambda text: int(text.rpartition("_")[2]))[:1] or texts


_PLAIN = ("s", "i", "f", "b")
_FUSING = ("remapping",)
_FEW = 16


def optimized(traced: TracedStep) -> list[Node]:
    """Return the operations that run, in the order in which they were traced.

    TensorFlow's own optimizer (Grappler) is run on the graph: it folds constants, fuses, merges
    what is the same, and leaves out what nobody reads. The order of what it gives depends on the
    names of layers too, so it is not kept.
    """
    graph = traced.graph
    definition = graph.as_graph_def()
    set_arguments(definition, traced)
    for node in definition.node:
        node.device = optimizing.HOST
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
    found = optimizing.optimize(_settings(without), given)
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


def as_traced(traced: TracedStep) -> list[Node]:
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
