"""Runs a graph without data, one operation after the other, on a device that only counts.

Loops, branches and calls run as the numbers in the graph say.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tensorlens.frameworks.tensorflow.sizes import nbytes
from tensorlens.planning.tensorflow.graphs.graph import (
    BRANCHES,
    LOOPS,
    Graph,
    GraphNode,
    NodeOutput,
    Shape,
)
from tensorlens.planning.tensorflow.graphs.kernels import (
    ALIASES,
    FORWARDS,
    NOTHING,
    Buffer,
    Value,
    drop,
    folded_number,
    keep,
    rows_of,
    special_outputs,
)
from tensorlens.planning.tensorflow.graphs.scratch import Scratch, ScratchOf
from tensorlens.planning.tensorflow.graphs.trace_writer import TraceWriter

_MAX_ITERATIONS = 100_000
"""Iterations after which a loop ends though its condition is still true."""


class GraphRunner:
    """Runs graphs on one device, whose memory is only counted.

    Args:
        writer: notes every request.
        variables: name of a variable's handle to its value; the variable has one reference to it.
        scratch: returns the scratch memory of a kernel.
        unknown: called with operations whose results have no shape, and conditions without a
            number.
        forwards: whether results reuse the buffers of inputs that nobody else reads.
        overlap: loop iterations that run at the same time: memory that one frees stays until this
            many more have begun.
    """

    def __init__(
        self,
        writer: TraceWriter,
        variables: dict[str, Value],
        scratch: ScratchOf,
        unknown: Callable[[GraphNode], None],
        forwards: bool = True,
        overlap: int = 0,
    ) -> None:
        self._writer = writer
        self.variables = variables
        self.unknown = unknown
        self._scratch = scratch
        self._forwards = forwards
        self._overlap = overlap
        self._iterations: deque[list[Buffer]] = deque()
        """Buffers that wait to be freed, by the loop iteration that dropped them."""
        self._shaped: dict[Any, GraphNode] = {}
        """Operations with shapes that were inferred from their inputs."""
        self._node: GraphNode | None = None

    def free(self, buffer: Buffer) -> None:
        """Free a buffer."""
        if buffer.row < 0:
            return
        if self._iterations:
            self._iterations[-1].append(buffer)
        else:
            self._writer.give(buffer.row, self._node)

    def _give_back(self, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self._writer.give(buffer.row, self._node)

    def assign(self, name: str, new: Value | None, like: Value) -> None:
        """Assign ``new`` to a variable, or a new buffer of the size and shape of ``like``.

        The old value is freed unless it is still read.
        """
        new = keep(new or Value(self.allocate(like.nbytes), like.shape))
        old = self.variables.get(name)
        self.variables[name] = new
        if old is not None:
            drop(old, self.free)
        if isinstance(new.held, Buffer) and new.held.row >= 0:
            before = None if old is None else old.held
            row = before.row if isinstance(before, Buffer) and before.refs > 0 else -1
            self._writer.assign(name, new.held.row, row, self._node)

    def allocate(self, nbytes: int, name: str | None = None) -> Buffer:
        """Return a new buffer without references."""
        row = self._writer.take(nbytes, self._node, name) if nbytes else -1
        return Buffer(nbytes, row)

    def new(self, shape: Shape, dtype: str) -> Value:
        """Return a new tensor."""
        return Value(self.allocate(nbytes(shape, dtype)), shape)

    def _take_scratch(self, scratch: Scratch) -> Buffer:
        buffer = self.allocate(max(scratch.nbytes, scratch.most), scratch.name)
        if scratch.most >= 0 and buffer.row >= 0:
            self._writer.bound(buffer.row, scratch.least, scratch.nbytes, scratch.most)
        buffer.refs = 1
        return buffer

    def run(
        self, node: GraphNode, values: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Buffer]]:
        """Return an operation's outputs, and the scratch that is freed at its end."""
        self._node = node
        needed = self._scratch(node, values)
        outputs = self._outputs(node, values)
        return outputs, [self._take_scratch(each) for each in needed]

    def _outputs(self, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
        special = special_outputs(self, node, values)
        if special is not None:
            return special
        if node.outputs and node.outputs[0].shape is None:
            node = self._with_shapes(node, values)
        if node.op in ALIASES:
            return [
                value.shaped(output.shape)
                for value, output in zip(values, node.outputs, strict=False)
            ]
        whole = rows_of(node, values)
        if whole is not None:
            return [Value(whole.held, output.shape, part=output.nbytes) for output in node.outputs]
        return self._computed(node, values)

    def _with_shapes(self, node: GraphNode, values: Sequence[Value]) -> GraphNode:
        """Return the operation with output shapes inferred from these inputs."""
        key = id(node), *((value.shape, str(value.number)) for value in values)
        known = self._shaped.get(key)
        if known is None:
            known = self._shaped[key] = replace(node, outputs=_inferred_outputs(node, values))
        return known

    def _computed(self, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
        number = folded_number(node.op, values)
        made: list[Value] = []
        for slot, output in enumerate(node.outputs):
            shape = output.shape
            if shape is None:
                self.unknown(node)
                shape = ()
            size = nbytes(shape, output.dtype)
            held: Buffer | None = None
            if slot == 0 and self._forwards:
                held = self._forwarded(FORWARDS.get(node.op, ()), values, size)
            if held is None:
                held = self.allocate(size)
            made.append(Value(held, shape, number if slot == 0 else None, part=size))
        return made

    def _forwarded(
        self, places: Sequence[int], values: Sequence[Value], nbytes: int
    ) -> Buffer | None:
        """Return the buffer of an input that the kernel can reuse: nobody else reads it."""
        for place in places:
            if place >= len(values):
                break
            held = values[place].held
            if isinstance(held, Buffer) and held.refs == 1 and nbytes == values[place].nbytes > 0:
                return held
        return None

    def run_graph(
        self, graph: Graph, arguments: Sequence[Value], lasts: Mapping[int, int] | None = None
    ) -> list[Value]:
        """Run a graph and return its results, each with one reference for the caller.

        Args:
            graph: the graph, in the order in which it runs.
            arguments: its arguments; the caller's references pass to it.
            lasts: operation number to the operation at whose end its results are dropped; by
                default they are dropped when all readers have run.
        """
        given = dict(zip(graph.arguments, arguments, strict=True))
        readers = Counter(source for node in graph.nodes for source in node.inputs)
        readers.update(graph.results)
        ends: dict[int, list[int]] = {}
        for number, last in (lasts or {}).items():
            ends.setdefault(last, []).append(number)
        # -1 stands for unused inputs
        results_of: dict[int, Sequence[Value]] = {-1: ()}
        for node in graph.nodes:
            values = [_slot(results_of[number], slot) for number, slot in node.inputs]
            if node.number in given:
                outputs: Sequence[Value] = [given[node.number]]
            elif node.calls:
                outputs, values = self._called(node, values), []
            else:
                outputs, scratch = self.run(node, values)
                for value in outputs:
                    keep(value)
                self._drop([Value(buffer) for buffer in scratch])
            results_of[node.number] = outputs
            self._drop(values)
            for slot, value in enumerate(outputs):
                for _ in range(readers[node.number, slot]):
                    keep(value)
            if lasts is None:
                self._drop(outputs)
            for number in ends.get(node.number, ()):
                self._drop(results_of[number])
        return [_slot(results_of[number], slot) for number, slot in graph.results]

    def _called(self, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
        """Run a function, branch or loop and return its results.

        It takes over the references to ``values``, so that it can change lists in place.
        """
        if node.op in LOOPS:
            return self._loop(node, values)
        if node.op not in BRANCHES:
            return self.run_graph(node.calls[0], values)
        condition, *rest = values
        self._drop([condition])
        # a condition that depends on values counts as true
        return self.run_graph(node.calls[self._truth(node, condition) is False], rest)

    def _loop(self, node: GraphNode, state: Sequence[Value]) -> Sequence[Value]:
        condition, body = node.calls
        for _ in range(_MAX_ITERATIONS):
            (goes_on,) = self.run_graph(condition, [keep(each) for each in state])
            self._drop([goes_on])
            number = self._truth(node, goes_on)
            if number is not False:
                self._iterations.append([])
                if len(self._iterations) > self._overlap:
                    self._give_back(self._iterations.popleft())
                state = self.run_graph(body, state)
            if not number:
                break
        while self._iterations:
            self._give_back(self._iterations.popleft())
        return state

    def _truth(self, node: GraphNode, condition: Value) -> bool | None:
        if condition.number is None:
            self.unknown(node)
            return None
        return bool(condition.number)

    def _drop(self, values: Sequence[Value]) -> None:
        for value in values:
            drop(value, self.free)


def _inferred_outputs(node: GraphNode, values: Sequence[Value]) -> Sequence[NodeOutput]:
    """Return an operation's outputs with the shapes that TensorFlow infers from its inputs."""
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.compat.v1.placeholder(dtype, value.shape)
            if value.number is None
            else tf.constant(value.number, dtype)
            for dtype, value in zip(node.dtypes, values, strict=True)
        ]
        attrs = dict(node.definition.attr)
        try:
            made = graph.create_op(node.op, inputs, attrs=attrs).outputs
        except Exception:  # the shapes do not fit after an unknown one
            return node.outputs
    return [
        NodeOutput(each.dtype, tuple(one.shape) if one.shape.is_fully_defined() else each.shape)
        for each, one in zip(node.outputs, made, strict=True)
    ]


def eager_lasts(
    graph: Graph, until: Mapping[int, int], held: Mapping[int, int]
) -> Mapping[int, int]:
    """Return for each operation the one at whose end Python drops its results.

    Args:
        graph: the step as it was traced.
        until: operation number to the operation at whose end a tape drops its results.
        held: operation number to the operation whose results its own results keep alive.
    """
    lasts = {node.number: node.number for node in graph.nodes}
    lasts.update((number, node.number) for node in graph.nodes for number, _ in node.inputs)
    for number, _ in graph.results:
        lasts[number] = len(graph.nodes) - 1
    for number, last in until.items():
        lasts[number] = max(lasts[number], last)
    for holder, number in sorted(held.items(), reverse=True):
        lasts[number] = max(lasts[number], lasts[holder])
    return lasts


def _slot(values: Sequence[Value], slot: int) -> Value:
    return values[slot] if slot < len(values) else NOTHING
