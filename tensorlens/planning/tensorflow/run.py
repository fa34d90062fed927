"""From a Keras model to the requests of its training step."""

from __future__ import annotations

import linecache
import platform
from collections.abc import Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tensorlens.collector import paused
from tensorlens.frameworks.host.logs import sources_of
from tensorlens.planning.tensorflow.cautions import cautions, compiled_by
from tensorlens.planning.tensorflow.execution import cpu
from tensorlens.planning.tensorflow.execution.executor import Order
from tensorlens.planning.tensorflow.execution.orders import (
    BATCHES_AHEAD,
    Meter,
    likeliest,
    spread,
)
from tensorlens.planning.tensorflow.execution.step_execution import StepExecution, bytes_of
from tensorlens.planning.tensorflow.graph.nodes import ENTERS, ITEM_SIZES, Node
from tensorlens.planning.tensorflow.graph.optimizing import as_traced, optimized
from tensorlens.planning.tensorflow.graph.tracing import StepInput, TracedStep, trace
from tensorlens.planning.tensorflow.ledger import Ledger, Places
from tensorlens.planning.tensorflow.request import TraceRequest
from tensorlens.planning.trace import Caution, Formula, Trace
from tensorlens.records.events import Label


@paused()
def run(model: Any, asked: TraceRequest) -> Trace:
    """Return what one train step of a model asks of its device's allocator.

    The model, its weights and its optimizer stay as they are.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    traced = trace(model, asked)
    on_host = asked.device == "cpu"
    as_graph = on_host and not asked.eager
    nodes = as_traced(traced) if asked.eager else optimized(traced)
    if as_graph and cpu.is_used():
        cpu.add_positions(nodes)
    batch = sum(bytes_of(each) for each in traced.feeds)
    xla = compiled_by(model, asked, traced.graph)
    found = Trace(
        framework="tensorflow",
        batch=asked.batch,
        unsimulated="XLA's buffers are not simulated" if xla else None,
        formulas=most_common(traced.layers, asked.batch),
        cautions=[
            *cautions(nodes, asked, traced.layers, batch, xla),
            *(cpu.cautions(nodes) if on_host else ()),
        ],
        versions={
            "tensorflow": str(tf.__version__),
            "keras": str(keras.__version__),
            "python": platform.python_version(),
        },
    )
    play = StepExecution(traced, nodes, asked)
    order = Order.FIRST_READY
    if on_host:
        peaks = {each: _peak(play, each) for each in (Order if as_graph else (order,))}
        has_loops = any(node.op in ENTERS for node in nodes)
        order = likeliest(peaks, has_loops=has_loops)
        low, high = spread(peaks, has_loops=has_loops) if as_graph else 2 * (peaks[order],)
        found.spread = low, high + BATCHES_AHEAD * batch
    values = {each.placeholder: _label(each) for each in traced.variables if each.placeholder}
    ledger = Ledger(
        found, "cpu" if on_host else "cuda:0", Places(found.log, traced.graph).of, values
    )
    _label_gradients(traced, nodes, ledger)
    play.run(
        ledger,
        lambda each, nbytes: ledger.hold(nbytes, _label(each)),
        lambda: ledger.mark("step 1"),
        _Unknown(found),
        order,
    )
    ledger.mark("end")
    found.log.sources = sources_of(found.log, linecache.getlines)
    return found


def _peak(play: StepExecution, order: Order) -> int:
    meter = Meter()
    play.run(
        meter,
        lambda each, nbytes: meter.take(nbytes, None),
        lambda: None,
        lambda node: None,
        order,
    )
    return meter.peak


class _Unknown:
    """Tells once for each kind of operation that its results have no shape."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._told: set[str] = set()

    def __call__(self, node: Node) -> None:
        if node.op in self._told:
            return
        self._told.add(node.op)
        if node.op == "Switch":
            text = "a condition depends on values: it was taken to be true (gradients are finite)"
        else:
            text = f"the shape of what {node.op} makes ({node.name}) is not known: it is left out"
        self._trace.cautions.append(Caution(text))


def _label(each: StepInput) -> Label:
    return Label(each.name, each.role, each.dtype, each.shape)


def _label_gradients(traced: TracedStep, nodes: Sequence[Node], ledger: Ledger) -> None:
    for node in nodes:
        path = traced.gradients.get(node.name)
        if path is not None and node.outputs:
            output = node.outputs[0]
            label = Label(f"{path}.grad", "gradient", output.dtype, output.shape)
            ledger.labels[node.number] = label


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
    import keras

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
