"""Estimates the requests of one train step of a Keras model."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tensorlens.frameworks.tensorflow.graphs.functions import Functions
from tensorlens.frameworks.tensorflow.sizes import item_size
from tensorlens.interpreter import paused_collector
from tensorlens.planning.tensorflow.graphs.graph import (
    BRANCHES,
    LOOPS,
    Graph,
    GraphNode,
    as_traced,
    optimized,
)
from tensorlens.planning.tensorflow.graphs.graph_run import GraphRunner, eager_lasts
from tensorlens.planning.tensorflow.graphs.kernels import NOTHING, Buffer, Value, drop, keep
from tensorlens.planning.tensorflow.graphs.scratch import (
    BFLOAT16,
    add_positions,
    host_scratch,
    scratch_of,
)
from tensorlens.planning.tensorflow.graphs.trace_writer import TraceWriter
from tensorlens.planning.tensorflow.keras_training import TYPES_ARE_GUESSED, tells_types
from tensorlens.planning.tensorflow.tracing import StepInput, TracedStep, TraceRequest, trace_graph
from tensorlens.planning.trace import Caution, Formula, Trace
from tensorlens.records.logs.events import Label
from tensorlens.records.logs.stacks import source_lines
from tensorlens.units import format_bytes

_OVERLAP = 16
"""Loop iterations that run at the same time on the CPU: half of Keras's maximum."""
_BELOW, _ABOVE = 0.7, 1.3
"""Bounds of a graph step's measured peak on the CPU, relative to that of operations run in order:
twenty steps each of eight networks with two optimizers, in three processes or eleven.
"""
_RUNTIME = 16 << 10
"""Further bytes of a step: constants of the graph, the iterator, states of generators."""


@paused_collector()
def train_step_trace(model: Any, request: TraceRequest) -> Trace:
    """Return what one train step would ask its device's allocator for.

    The model, its weights and its optimizer are not changed.

    Raises:
        UsageError: the shapes of the model's inputs are unknown.
    """
    if request.run_eagerly is None:
        request = replace(request, run_eagerly=bool(getattr(model, "run_eagerly", False)))
    traced = trace_graph(model, request)
    on_host = request.device == "cpu"
    graph = as_traced(traced) if request.run_eagerly else optimized(traced)
    batch = sum(each.nbytes for each in traced.feeds)
    function = traced.function.name.decode()
    xla = _xla_reason(model, request, function)
    found = Trace(
        framework="tensorflow",
        batch=request.batch_size,
        unsimulated="XLA's buffers are not simulated" if xla else None,
        formulas=_rule_of_thumb(traced.model, request.batch_size),
        cautions=_cautions(graph.nodes, request, traced.model, batch, xla),
        versions={
            "tensorflow": str(tf.__version__),
            "keras": str(keras.__version__),
            "python": platform.python_version(),
        },
    )
    variables = {each.placeholder: each.label for each in traced.variables if each.placeholder}
    writer = TraceWriter(found, "cpu" if on_host else "cuda:0", function, variables)
    _label_gradients(traced, graph.nodes, writer)
    execute(traced, graph, request, writer, _warn_once_per_operation(found))
    writer.mark("end")
    if on_host:
        found.cpu_peak_bounds = _peak_bounds(request, writer.peak, batch)
    found.log.sources = source_lines(found.log.stacks)
    return found


def execute(
    traced: TracedStep,
    graph: Graph,
    request: TraceRequest,
    writer: TraceWriter,
    warn: Callable[[GraphNode], None],
) -> None:
    """Run a step once.

    Args:
        traced: the step.
        graph: the graph that runs.
        request: how and where it runs.
        writer: notes every allocation.
        warn: called with each operation that has to be guessed at: one whose result has no known
            shape, a loop or a condition that depends on values.
    """
    on_host = request.device == "cpu"
    if on_host and not request.run_eagerly:
        add_positions(graph.nodes)
    variables: dict[str, Value] = {}
    for number, each in enumerate(traced.variables):
        variables[each.placeholder or f"unread {number}"] = _held_before(each, writer)
    feeds = {each.placeholder: _held_before(each, writer) for each in traced.feeds}
    writer.mark("step 1")
    scratch = host_scratch if on_host else scratch_of(request.card)
    overlap = _OVERLAP if on_host and not request.run_eagerly else 0
    runner = GraphRunner(writer, variables, scratch, warn, not request.run_eagerly, overlap)
    names = {node.number: node.name for node in graph.nodes}
    arguments = [
        Value(variable=name) if name in variables else keep(feeds.get(name, NOTHING))
        for name in (names.get(number, "") for number in graph.arguments)
    ]
    lasts = None
    if request.run_eagerly:
        numbers = {name: number for number, name in names.items()}
        held = {numbers[one]: numbers[other] for one, other in traced.held.items()}
        until = {numbers[name]: last for name, last in traced.until.items() if name in numbers}
        lasts = eager_lasts(graph, until, held)
    for value in runner.run_graph(graph, arguments, lasts):
        drop(value, runner.free)


def _peak_bounds(request: TraceRequest, peak: int, batch: int) -> tuple[int, int]:
    """Return the bounds of a step's peak on the CPU, in bytes."""
    low, high = peak, peak
    if not request.run_eagerly:
        low, high = int(peak * _BELOW), int(peak * _ABOVE) + _RUNTIME
    return low, high + BATCHES_AHEAD * batch


def _held_before(each: StepInput, writer: TraceWriter) -> Value:
    row = writer.hold(each.nbytes, each.label)
    return keep(Value(Buffer(each.nbytes, row), each.shape))


def _warn_once_per_operation(trace: Trace) -> Callable[[GraphNode], None]:
    """Return a function that adds one caution for each kind of operation that is guessed at."""
    told: set[str] = set()

    def warn(node: GraphNode) -> None:
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

    return warn


def _label_gradients(traced: TracedStep, nodes: Sequence[GraphNode], writer: TraceWriter) -> None:
    for node in nodes:
        path = traced.gradients.get(node.name)
        if path is not None and node.outputs:
            output = node.outputs[0]
            label = Label(f"{path}.grad", "gradient", output.dtype, output.shape)
            writer.labels[node.number] = label


_XLA = (
    "{}: XLA plans buffers of its own when it compiles, which are not simulated; the figures are "
    "of the step without XLA, which may take less or more"
)
_AUTO = (
    "these are figures without XLA: on a GPU Keras compiles a step with it unless "
    "compile(jit_compile=False) is written"
)
_LAYOUT = (
    "the graph is optimized as for a CPU: what TensorFlow's layout optimizer would change on a GPU "
    "(channels first for float32 convolutions on cards below 8.0) is told as copies of each kernel"
)
_GROWTH = (
    "TensorFlow takes nearly all of a card at once unless memory growth is set: what is reserved "
    "is told as with tf.config.experimental.set_memory_growth"
)
_CUDNN = (
    "how much cuDNN's convolutions take while they run depends on the algorithms that are picked "
    "on the card: from nothing to copies of all that they read and write"
)
_POOLING = (
    "cuDNN pools three dimensions with channels first only: input and output, and in backward "
    "their gradients too, are copied (cudnn_pooling_gpu.cc)"
)
_RECURRENT = (
    "recurrent layers are estimated as loops; on a GPU Keras takes cuDNN's own kernels where it"
    " can, which keep a reserve of their own"
)
_ORDER = (
    "operations that are ready at the same time, and iterations of loops, run in an order that only"
    " a run tells: one was simulated, and the bounds are as far from it as measured steps were"
)
_PRODUCTS = (
    "what products in bfloat16 take on this processor was counted by running each once; those of "
    "more than 2 billion multiplications were not run: they may take more"
)
BATCHES_AHEAD = 4
"""Batches that Keras's adapter of arrays holds beside the step's, as measured with ``fit``."""
_UNROLLED = "recurrent layers were written out step by step, as Python runs them"
_ONE_BATCH = "one batch is counted; tensorlens.inputs() tells what the input pipeline holds ahead"
_AHEAD = (
    "the upper bound has room for {} more batches ({} each), which fit() holds ahead of the step; "
    "given NumPy arrays, it may keep a copy of all samples, which is not counted"
)


def _cautions(
    nodes: Sequence[GraphNode], request: TraceRequest, model: Any, batch: int, xla: str
) -> list[Caution]:
    """Return the cautions that apply to a step.

    Args:
        nodes: the operations of its graph.
        request: the request.
        model: the model that is trained.
        batch: bytes of one batch.
        xla: why XLA compiles the step or a part of it; empty if it does not.
    """
    ops = {node.op for node in nodes}
    recurrent = any(hasattr(each, "unroll") for each in model._flatten_layers())
    on_host = request.device == "cpu"
    texts = [_AHEAD.format(BATCHES_AHEAD, format_bytes(batch)) if on_host else _ONE_BATCH]
    texts += [_XLA.format(xla)] if xla else []
    if request.input_dtype is None and not tells_types(model):
        texts.append(TYPES_ARE_GUESSED)
    if on_host:
        if not request.run_eagerly:
            texts.append(_ORDER)
        elif recurrent:
            texts.append(_UNROLLED)
        if any("MatMul" in node.op and node.attrs.get("T") == BFLOAT16 for node in nodes):
            texts.append(_PRODUCTS)
    else:
        texts += [_GROWTH] if request.run_eagerly else [_LAYOUT, _GROWTH]
        # the model's jit_compile tells nothing: without a GPU compile() turns "auto" into False
        texts += [_AUTO] if not (request.run_eagerly or xla) else []
        texts += [_CUDNN] if any(op.startswith(("Conv", "_FusedConv")) for op in ops) else []
        texts += [_POOLING] if any("Pool3D" in op for op in ops) else []
        texts += [_RECURRENT] if recurrent else []
    return [Caution(text) for text in texts]


def _xla_reason(model: Any, request: TraceRequest, function: str) -> str:
    """Return why XLA compiles a step; empty if it does not.

    Args:
        model: the model that is trained.
        request: the request.
        function: name of the traced step in TensorFlow's runtime.
    """
    if not request.run_eagerly:
        compiled = getattr(model, "_compile_config", None)
        given = "auto" if compiled is None else compiled.config.get("jit_compile", "auto")
        if given == "auto":
            allows = all(getattr(each, "supports_jit", True) for each in model._flatten_layers())
            if request.device != "cpu" and allows:
                return "Keras compiles a step with XLA on a GPU unless compile(jit_compile=False)"
        # the model's jit_compile decides: the program may set it after compile()
        elif getattr(model, "jit_compile", given):
            return "compile(jit_compile=True)"
    if Functions().compiled(function):
        return "tf.function(jit_compile=True)"
    return "tf.config.optimizer.set_jit()" if tf.config.optimizer.get_jit() else ""


_RULE_NAME = "weights + layer outputs"
_RULE_NOTE = (
    "the sum of stackoverflow.com/questions/43137288: each layer's weights and one output, as a "
    "forward pass would keep them; it leaves out gradients, what backward computes, optimizer "
    "slots, fp32 copies under mixed precision and what kernels take, and it counts an activation "
    "twice when it is a layer of its own, though the graph is the same"
)


def _rule_of_thumb(model: Any, batch: int) -> tuple[Formula, ...]:
    """Return the rule of thumb's figure; nothing if a layer's output has no shape."""
    try:
        return (Formula(_RULE_NAME, _layer_sum(model, batch), _RULE_NOTE),)
    except Exception:  # a model of one's own class has layers of any kind
        return ()


def _layer_sum(model: Any, batch: int) -> int:
    """Return the sum as published: weights of a nested model are counted with its layers too."""
    total = 0
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            total += _layer_sum(layer, batch)
        size = item_size(layer.compute_dtype)
        output = layer.output
        first = output[0] if isinstance(output, (list, tuple)) else output
        total += (
            batch * prod(each for each in first.shape if each is not None) * item_size(first.dtype)
        )
        total += layer.count_params() * size
    return total
