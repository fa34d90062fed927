"""The graph of a step as it runs, optimized by Grappler, as plain data.

It is linked with the functions that it calls. As in TensorFlow, unread results and loop values
are left out, such as the gradient of a mask and what the forward loop would keep for it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from graphlib import TopologicalSorter
from math import prod
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2
from tensorflow.python.framework import function_def_to_graph, meta_graph
from tensorflow.python.grappler import cluster, tf_optimizer

from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.planning.tensorflow.tracing import TracedStep

LOOPS = ("While", "StatelessWhile")
BRANCHES = ("If", "StatelessIf")

_UNUSED = -1, 0
"""Stands for an input or result that nobody reads."""
_CALLED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(BRANCHES, ("then_branch", "else_branch")),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
"""Operations, other than loops, to their attributes that name functions."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """Output of an operation: one tensor."""

    dtype: str
    shape: Shape | None
    """None if unknown."""

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor; None if the shape is unknown."""
        return None if self.shape is None else nbytes(self.shape, self.dtype)


@dataclass(slots=True, eq=False)
class GraphNode:
    """One operation."""

    number: int
    name: str
    op: str
    inputs: Sequence[tuple[int, int]] = ()
    """For each input the number of the operation that makes it and its output slot."""
    controls: Sequence[int] = ()
    """Numbers of the operations that run before this one without giving it a tensor."""
    outputs: Sequence[NodeOutput] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Plain values only: integers, texts, booleans, names of functions, lists of them."""
    value: Any = None
    """Value of a small constant of integers or booleans: a number, or a list of a few."""
    dtypes: Sequence[str] = ()
    """Dtypes of the inputs."""
    definition: Any = None
    """Its ``NodeDef``."""
    calls: Sequence[Graph] = ()
    """Functions that it runs: a loop's condition and body, or both sides of a branch."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations of a step, or of a function that it calls."""

    nodes: Sequence[GraphNode]
    arguments: Sequence[int] = ()
    """Numbers of the operations that stand for its arguments."""
    results: Sequence[tuple[int, int]] = ()
    """For each result the number of an operation and its output slot."""


def linked(graph: Graph, functions: Mapping[str, Graph], *, as_written: bool) -> Graph:
    """Link a step's graph with the functions that it calls.

    Args:
        graph: the graph of the step.
        functions: all functions that it may call, by name.
        as_written: keep all operations, in the order of the program.
    """
    if as_written:
        return replace(graph, nodes=[_with_calls(each, functions) for each in graph.nodes])
    return _live(graph, functions, range(len(graph.results)))


def _live(
    graph: Graph, functions: Mapping[str, Graph], wanted: Collection[int], scope: str = ""
) -> Graph:
    """Return the part of a graph that the wanted results need.

    Args:
        graph: the graph.
        functions: all functions that it may call, by name.
        wanted: indices of results.
        scope: prefix of the names of its operations.
    """
    results = [each if place in wanted else _UNUSED for place, each in enumerate(graph.results)]
    needed = set(results)
    nodes: list[GraphNode] = []
    for node in reversed(_first_ready(graph.nodes)):
        slots = {slot for slot in range(len(node.outputs)) if (node.number, slot) in needed}
        acts = not node.outputs or node.op in LOOPS or node.op in _CALLED
        if not slots and not acts and node.number not in graph.arguments:
            continue
        node = replace(node, name=scope + node.name)
        node = _loop(node, functions, slots) if node.op in LOOPS else _with_calls(node, functions)
        needed.update(node.inputs)
        nodes.append(node)
    return Graph(nodes[::-1], graph.arguments, results)


def _with_calls(node: GraphNode, functions: Mapping[str, Graph]) -> GraphNode:
    if node.op in LOOPS:
        return _loop(node, functions, range(len(node.outputs)))
    called = [functions[node.attrs[name]] for name in _CALLED.get(node.op, ())]
    if not called:
        return node
    scope = f"{node.name}/"
    calls = [_live(each, functions, range(len(each.results)), scope) for each in called]
    return replace(node, calls=calls)


def _loop(node: GraphNode, functions: Mapping[str, Graph], slots: Collection[int]) -> GraphNode:
    scope = f"{node.name}/"
    condition = _live(functions[node.attrs["cond"]], functions, (0,), scope)
    wanted = {*slots, *_read_arguments(condition)}
    while True:
        body = _live(functions[node.attrs["body"]], functions, wanted, scope)
        if wanted.issuperset(_read_arguments(body)):
            break
        wanted.update(_read_arguments(body))
    inputs = [each if place in wanted else _UNUSED for place, each in enumerate(node.inputs)]
    return replace(node, inputs=inputs, calls=(condition, body))


def _read_arguments(graph: Graph) -> set[int]:
    """Return the indices of the arguments that are read."""
    needed = {number for node in graph.nodes for number, _ in node.inputs}
    needed.update(number for number, _ in graph.results)
    return {place for place, number in enumerate(graph.arguments) if number in needed}


def _first_ready(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the operations in topological order, by generations of readiness."""
    # within a generation they keep the order of the nodes
    sorter: TopologicalSorter[int] = TopologicalSorter({node.number: () for node in nodes})
    for node in nodes:
        sorter.add(node.number, *(number for number, _ in node.inputs), *node.controls)
    return [nodes[number] for number in sorter.static_order()]


_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
_TRAIN = "train_op"
"""Collection that lists the operations that Grappler must keep."""
_LOWER = "_lower_using_switch_merge"
"""Attribute of loops and branches that Grappler would lower to switches."""
_FUSING = ("remapping",)
_PLAIN_KINDS = ("s", "i", "f", "b")
_MAX_ELEMENTS = 16


def optimized(traced: TracedStep) -> Graph:
    """Return the operations that run, in the order in which they were traced.

    TensorFlow's own optimizer (Grappler) folds constants, fuses and merges operations, and removes
    unread ones. The order of its result depends on the names of layers, so it is not kept.
    """
    graph = traced.graph
    definition = graph.as_graph_def()
    _set_arguments(definition, traced)
    for node in definition.node:
        node.device = _HOST
    for node in (*definition.node, *(n for f in definition.library.function for n in f.node_def)):
        node.attr.pop(_LOWER, None)
    outputs = [each.op.name for each in graph.outputs]
    given = meta_graph.create_meta_graph_def(graph_def=definition, graph=None)
    given.collection_def[_TRAIN].node_list.value.extend(
        dict.fromkeys([*outputs, *(op.name for op in graph.control_outputs)])
    )
    try:
        return _read(_optimize(given), traced)
    except (ValueError, tf.errors.InvalidArgumentError):
        # fused bfloat16 operations have kernels, but Python cannot import them
        return _read(_optimize(given, _FUSING), traced)


def as_traced(traced: TracedStep) -> Graph:
    """Return the operations as they were traced, in the order of the program."""
    return _read(traced.graph.as_graph_def(), traced, traced.graph)


def _set_arguments(definition: Any, traced: TracedStep) -> None:
    """Replace the step's arguments by operations with shapes.

    Called from Python, Grappler assumes that placeholders and arguments of functions may have any
    shape (``core/grappler/costs/graph_properties.cc``, ``InferStatically``). Variables become
    handles, other arguments ``InfeedDequeue``: it has a shape, reads nothing, and is never folded
    or merged.
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


def _optimize(given: Any, without: Sequence[str] = ()) -> Any:
    settings = config_pb2.ConfigProto()
    options = settings.graph_options.rewrite_options
    options.min_graph_nodes = -1
    for each in without:
        setattr(options, each, rewriter_config_pb2.RewriterConfig.OFF)
    return tf_optimizer.OptimizeGraph(settings, given, verbose=False, cluster=_host())


@cache
def _host() -> Any:
    """Return this machine's CPU as a cluster; without one, each graph starts a session."""
    # the frequency is required, and decides nothing
    properties = device_properties_pb2.DeviceProperties(
        type="CPU", num_cores=os.cpu_count() or 1, frequency=1000
    )
    device = device_properties_pb2.NamedDevice(name=_HOST, properties=properties)
    return cluster.Cluster(devices=[device])


def _sorted(nodes: Sequence[Any], traced: Any) -> Sequence[Any]:
    """Return operations in traced order; a new one follows the last operation that it reads."""
    ranks = {each.name: rank for rank, each in enumerate(traced.get_operations())}
    sources = {
        node.name: [text.lstrip("^").partition(":")[0] for text in node.input]
        for node in nodes
        if node.name not in ranks
    }
    while sources:
        for name in [name for name, each in sources.items() if all(one in ranks for one in each)]:
            ranks[name] = max((ranks[one] for one in sources.pop(name)), default=-1)
    return sorted(nodes, key=lambda node: ranks[node.name])


def _read(definition: Any, traced: TracedStep, graph: Any = None) -> Graph:
    """Read a graph definition, with the functions that it calls."""
    if graph is None:
        graph = tf.Graph()
        with graph.as_default():
            tf.graph_util.import_graph_def(definition, name="")
    with graph.as_default():
        functions = {each.signature.name: _function(each) for each in definition.library.function}
    whole = _graph(_sorted(definition.node, traced.graph), graph, traced.graph)
    return linked(whole, functions, as_written=graph is traced.graph)


def _function(definition: Any) -> Graph:
    graph = function_def_to_graph.function_def_to_graph(definition)
    return _graph(graph.as_graph_def().node, graph, graph)


def _graph(definitions: Sequence[Any], graph: Any, traced: Any) -> Graph:
    nodes = nodes_of(definitions, graph)
    numbers = {node.name: node.number for node in nodes}
    results = [(numbers[each.op.name], each.value_index) for each in traced.outputs]
    return Graph(nodes, [numbers.get(each.op.name, -1) for each in traced.inputs], results)


def nodes_of(definitions: Sequence[Any], graph: Any) -> list[GraphNode]:
    """Return operations with the shapes of their results.

    Args:
        definitions: their ``NodeDef``.
        graph: a graph with operations of the same names and results.
    """
    numbers = {node.name: number for number, node in enumerate(definitions)}
    return [
        _node(number, node, numbers, graph.get_operation_by_name(node.name))
        for number, node in enumerate(definitions)
    ]


def _node(number: int, node: Any, numbers: Mapping[str, int], operation: Any) -> GraphNode:
    inputs, controls = [], []
    for text in node.input:
        if text.startswith("^"):
            controls.append(numbers[text[1:]])
        else:
            name, _, slot = text.partition(":")
            inputs.append((numbers[name], int(slot or 0)))
    attrs = {key: _plain(value) for key, value in node.attr.items() if key != "value"}
    made = [NodeOutput(output.dtype.name, _shape(output.shape)) for output in operation.outputs]
    dtypes = [each.dtype.name for each in operation.inputs]
    value = _constant(node, made[0]) if node.op == "Const" else None
    return GraphNode(number, node.name, node.op, inputs, controls, made, attrs, value, dtypes, node)


def _constant(node: Any, made: NodeOutput) -> Any:
    """Return the value of a small constant of integers or booleans; None for any other."""
    if made.dtype not in ("int32", "int64", "bool") or made.shape is None or len(made.shape) > 1:
        return None
    if prod(made.shape) > _MAX_ELEMENTS:
        return None
    return tf.make_ndarray(node.attr["value"].tensor).tolist()


def _shape(shape: Any) -> Shape | None:
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "s":
        return value.s.decode("utf-8", "replace")
    if kind in _PLAIN_KINDS:
        return getattr(value, kind)
    if kind == "type":
        return tf.as_dtype(value.type).name
    if kind == "func":
        return value.func.name
    return None
