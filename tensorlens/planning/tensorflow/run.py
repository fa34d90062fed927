"""From a Keras model to the requests of its training step."""

from __future__ import annotations

import linecache
import platform
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tensorlens.frameworks.host.logs import sources_of
from tensorlens.interpreter import paused_collector
from tensorlens.planning.tensorflow.cautions import BATCHES_AHEAD, cautions, compiled_by
from tensorlens.planning.tensorflow.execution.graph_run import GraphRun, eager_lasts
from tensorlens.planning.tensorflow.execution.kernels import Machine
from tensorlens.planning.tensorflow.execution.live_values import NOTHING, Buffer, Value, drop, keep
from tensorlens.planning.tensorflow.execution.scratch import add_positions, host_scratch, scratch_of
from tensorlens.planning.tensorflow.graph.nodes import BRANCHES, ITEM_SIZES, LOOPS, Graph, GraphNode
from tensorlens.planning.tensorflow.graph.optimizing import as_traced, optimized
from tensorlens.planning.tensorflow.graph.tape import kept_until
from tensorlens.planning.tensorflow.graph.tracing import StepInput, TracedStep, TraceRequest, trace
from tensorlens.planning.tensorflow.trace_writer import OperationPlaces, TraceWriter
from tensorlens.planning.trace import Caution, Formula, Trace
from tensorlens.records.events import Label

_OVERLAP = 16
"""Iterations of a loop that run at the same time on the CPU: half of those that may, in Keras."""
_BELOW, _ABOVE = 0.7, 1.3
"""How far steps of graphs on the CPU may be from the peak of operations in order, as measured:
twenty steps each of eight networks with two optimizers, in three processes or eleven.
"""
_RUNTIME = 16 << 10
"""Bytes that a step has besides: constants of the graph, the iterator, states of generators."""


@paused_collector()
def run(model: Any, asked: TraceRequest) -> Trace:
    """Return what one train step of a model asks of its device's allocator.

    The model, its weights and its optimizer stay as they are.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    traced = trace(model, asked)
    on_host = asked.device == "cpu"
    graph = as_traced(traced) if asked.eager else optimized(traced)
    batch = sum(_bytes_of(each) for each in traced.feeds)
    function = traced.function.name.decode()
    xla = compiled_by(model, asked, function)
    found = Trace(
        framework="tensorflow",
        batch=asked.batch,
        unsimulated="XLA's buffers are not simulated" if xla else None,
        formulas=most_common(traced.layers, asked.batch),
        cautions=cautions(graph.nodes, asked, traced.layers, batch, xla),
        versions={
            "tensorflow": str(tf.__version__),
            "keras": str(keras.__version__),
            "python": platform.python_version(),
        },
    )
    variables = {each.placeholder: _label(each) for each in traced.variables if each.placeholder}
    places = OperationPlaces(found.log, function)
    writer = TraceWriter(found, "cpu" if on_host else "cuda:0", places.of, variables)
    _label_gradients(traced, graph.nodes, writer)
    execute(traced, graph, asked, writer, _teller_of_unknown(found))
    writer.mark("end")
    if on_host:
        found.spread = _band(asked, writer.peak, batch)
    found.log.sources = sources_of(found.log, linecache.getlines)
    return found


def execute(
    traced: TracedStep,
    graph: Graph,
    asked: TraceRequest,
    writer: TraceWriter,
    unknown: Callable[[GraphNode], None],
) -> None:
    """Run a step once.

    Args:
        traced: the step.
        graph: of it, as it runs.
        asked: how it runs, and where.
        writer: takes note of every request.
        unknown: told an operation whose results have no shape.
    """
    on_host = asked.device == "cpu"
    if on_host and not asked.eager:
        add_positions(graph.nodes)
    variables: dict[str, Value] = {}
    for number, each in enumerate(traced.variables):
        variables[each.placeholder or f"unread {number}"] = _there(each, writer)
    feeds = {each.placeholder: _there(each, writer) for each in traced.feeds}
    writer.mark("step 1")
    scratch = host_scratch if on_host else scratch_of(asked.card)
    overlap = _OVERLAP if on_host and not asked.eager else 0
    machine = Machine(writer, variables, scratch, unknown, not asked.eager, overlap)
    names = {node.number: node.name for node in graph.nodes}
    arguments = [
        Value(variable=name) if name in variables else keep(feeds.get(name, NOTHING))
        for name in (names.get(number, "") for number in graph.arguments)
    ]
    lasts = None
    if asked.eager:
        numbers = {name: number for number, name in names.items()}
        held = {numbers[one]: numbers[other] for one, other in traced.held.items()}
        lasts = eager_lasts(graph, kept_until(traced.calls, numbers), held)
    for value in GraphRun(machine).run(graph, arguments, lasts):
        drop(value, machine.free)


def _band(asked: TraceRequest, peak: int, batch: int) -> tuple[int, int]:
    """Return the least and the most bytes that a step may peak at."""
    low, high = peak, peak
    if not asked.eager:
        low, high = int(peak * _BELOW), int(peak * _ABOVE) + _RUNTIME
    return low, high + BATCHES_AHEAD * batch


def _bytes_of(each: StepInput) -> int:
    return prod(each.shape) * ITEM_SIZES.get(each.dtype, 0)


def _there(each: StepInput, writer: TraceWriter) -> Value:
    nbytes = _bytes_of(each)
    return keep(Value(Buffer(nbytes, writer.hold(nbytes, _label(each))), each.shape))


def _teller_of_unknown(trace: Trace) -> Callable[[GraphNode], None]:
    """Return what tells once for each kind of operation that its results have no shape."""
    told: set[str] = set()

    def unknown(node: GraphNode) -> None:
        if node.op in told:
            return
        told.add(node.op)
        if node.op in LOOPS:
            text = "how often a loop runs depends on values: one iteration was counted"
        elif node.op in BRANCHES:
            text = "a condition depends on values: it was taken to be true (gradients are finite)"
        else:
            text = f"the shape of what {node.op} makes ({node.name}) is not known: it is left out"
        trace.cautions.append(Caution(text))

    return unknown


def _label(each: StepInput) -> Label:
    return Label(each.name, each.role, each.dtype, each.shape)


def _label_gradients(traced: TracedStep, nodes: Sequence[GraphNode], writer: TraceWriter) -> None:
    for node in nodes:
        path = traced.gradients.get(node.name)
        if path is not None and node.outputs:
            output = node.outputs[0]
            label = Label(f"{path}.grad", "gradient", output.dtype, output.shape)
            writer.labels[node.number] = label


_NAME = "weights + layer outputs"
_WHY = (
    "the sum of stackoverflow.com/questions/43137288: each layer's weights and one output, as a "
    "forward pass would keep them; it leaves out gradients, what backward computes, optimizer "
    "slots, fp32 copies under mixed precision and what kernels take, and it counts an activation "
    "twice when it is a layer of its own, though the graph is the same"
)


def most_common(model: Any, batch: int) -> tuple[Formula, ...]:
    """Return what it comes to; nothing where a layer's output has no shape."""
    try:
        return (Formula(_NAME, _summed(model, batch), _WHY),)
    except Exception:  # a model of one's own class has layers of any kind
        return ()


def _summed(model: Any, batch: int) -> int:
    total = 0
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            total += _summed(layer, batch)
        size = ITEM_SIZES[layer.compute_dtype]
        output = layer.output
        first = output[0] if isinstance(output, (list, tuple)) else output
        total += (
            batch * prod(each for each in first.shape if each is not None) * ITEM_SIZES[first.dtype]
        )
        total += layer.count_params() * size
    return total
