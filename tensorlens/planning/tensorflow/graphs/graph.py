"""The graph of a step that really runs, as Grappler makes it of the traced one, as plain data.

Functions that it calls are linked to it. TensorFlow leaves out of a function, and of a loop's
values, what nobody reads: a gradient of a mask that nobody trains, say, and all that the forward
loop would keep for it.
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

_NONE = -1, 0
"""Input or result that nobody needs."""
_CALLED: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(BRANCHES, ("then_branch", "else_branch")),
    **dict.fromkeys(("PartitionedCall", "StatefulPartitionedCall"), ("f",)),
}
"""Operation to its attributes that name functions, but for loops."""

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """Output of an operation: one tensor."""

    dtype: str
    shape: Shape | None
    """None where the graph does not tell."""

    @property
    def nbytes(self) -> int | None:
        """Bytes of the tensor; None where the shape is not known."""
        return None if self.shape is None else nbytes(self.shape, self.dtype)


@dataclass(slots=True, eq=False)
class GraphNode:
    """One operation."""

    number: int
    name: str
    op: str
    inputs: Sequence[tuple[int, int]] = ()
    """Number of the operation and of its output, for each input; -1 where nobody needs it."""
    controls: Sequence[int] = ()
    """Numbers of the operations that come before this one without giving it anything."""
    outputs: Sequence[NodeOutput] = ()
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Plain values only: integers, texts, booleans, names of functions, lists of them."""
    value: Any = None
    """A constant's number, or a list of a few, where it is of integers or truth."""
    dtypes: Sequence[str] = ()
    """Of the inputs."""
    definition: Any = None
    """Its ``NodeDef``."""
    calls: Sequence[Graph] = ()
    """Functions that it runs: of a loop its condition and its body, of a branch both sides."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Operations of a step, or of a function that it calls."""

    nodes: Sequence[GraphNode]
    arguments: Sequence[int] = ()
    """Numbers of the operations that stand for what it is given."""
    results: Sequence[tuple[int, int]] = ()
    """Number of an operation and of its output, for each result; -1 where nobody needs it."""


def linked(graph: Graph, functions: Mapping[str, Graph], *, as_written: bool) -> Graph:
    """Return a step's graph, with the functions that it calls.

    Args:
        graph: of the step.
        functions: all that it may call, by name.
        as_written: whether all operations run, in the order of the program.
    """
    if as_written:
        return replace(graph, nodes=[_with_calls(each, functions) for each in graph.nodes])
    return _live(graph, functions, range(len(graph.results)))


def _live(
    graph: Graph, functions: Mapping[str, Graph], wanted: Collection[int], scope: str = ""
) -> Graph:
    """Return the part of a graph that is needed.

    Args:
        graph: which one.
        functions: all that it may call.
        wanted: places of results.
        scope: put before the names of its operations.
    """
    results = [each if place in wanted else _NONE for place, each in enumerate(graph.results)]
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
    inputs = [each if place in wanted else _NONE for place, each in enumerate(node.inputs)]
    return replace(node, inputs=inputs, calls=(condition, body))


def _read_arguments(graph: Graph) -> set[int]:
    """Return the places of the arguments that are needed."""
    needed = {number for node in graph.nodes for number, _ in node.inputs}
    needed.update(number for number, _ in graph.results)
    return {place for place, number in enumerate(graph.arguments) if number in needed}


def _first_ready(nodes: Sequence[GraphNode]) -> list[GraphNode]:
    """Return the operations in a topological order: those that are ready first come first."""
    # what is ready at once comes in the order of the nodes
    sorter: TopologicalSorter[int] = TopologicalSorter({node.number: () for node in nodes})
    for node in nodes:
        sorter.add(node.number, *(number for number, _ in node.inputs), *node.controls)
    return [nodes[number] for number in sorter.static_order()]


_HOST = "/job:localhost/replica:0/task:0/device:CPU:0"
_TRAIN = "train_op"
"""Where a graph lists what is to be kept of it."""
_LOWER = "_lower_using_switch_merge"
"""Attribute of loops and branches that Grappler would take apart."""
_FUSING = ("remapping",)
_PLAIN = ("s", "i", "f", "b")
_FEW = 16


def optimized(traced: TracedStep) -> Graph:
    """Return the operations that run, in the order in which they were traced.

    TensorFlow's own optimizer (Grappler) is run on the graph: it folds constants, fuses, merges
    what is the same, and leaves out what nobody reads. The order of what it gives depends on the
    names of layers too, so it is not kept.
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
        # in bfloat16 there are kernels for what is fused, but no such operation for Python
        return _read(_optimize(given, _FUSING), traced)


def as_traced(traced: TracedStep) -> Graph:
    """Return the operations as they were traced, in the order of the program."""
    return _read(traced.graph.as_graph_def(), traced, traced.graph)


def _set_arguments(definition: Any, traced: TracedStep) -> None:
    """Let a step's arguments tell their shapes.

    Grappler takes placeholders, and the arguments of functions too where it is called from Python,
    for something that is fed and may have any shape (``core/grappler/costs/graph_properties.cc``,
    ``InferStatically``). A handle stands for each variable here, and for each other argument
    ``InfeedDequeue``, which has a shape, reads nothing, and is never folded or merged.
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
    """Return this machine's CPU: without it each graph starts a session, and says so."""
    # how fast it is decides nothing, but has to be told
    properties = device_properties_pb2.DeviceProperties(
        type="CPU", num_cores=os.cpu_count() or 1, frequency=1000
    )
    device = device_properties_pb2.NamedDevice(name=_HOST, properties=properties)
    return cluster.Cluster(devices=[device])


def _sorted(nodes: Sequence[Any], traced: Any) -> Sequence[Any]:
    """Return operations as they were traced; new ones come behind the last of what they read."""
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
    """Return the step's graph, with all functions that it may call."""
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
    """Return operations with the shapes of what they make.

    Args:
        definitions: their ``NodeDef``.
        graph: one with operations of the same names and results.
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
    if kind == "func":
        return value.func.name
    return None
