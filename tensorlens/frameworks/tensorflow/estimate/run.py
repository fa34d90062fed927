"""From a Keras model to the requests of its training step."""

from __future__ import annotations

import linecache
import platform
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tensorlens.collector import paused
from tensorlens.frameworks.native.logs import sources_of
from tensorlens.frameworks.tensorflow.estimate import onednn, products
from tensorlens.frameworks.tensorflow.estimate.asked import Asked
from tensorlens.frameworks.tensorflow.estimate.cautions import cautions
from tensorlens.frameworks.tensorflow.estimate.edges import Building
from tensorlens.frameworks.tensorflow.estimate.formula import popular
from tensorlens.frameworks.tensorflow.estimate.ledger import Ledger
from tensorlens.frameworks.tensorflow.estimate.merging import merged
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.estimate.optimizing import as_traced, optimized
from tensorlens.frameworks.tensorflow.estimate.orders import BATCHES_AHEAD, Orders, in_many_orders
from tensorlens.frameworks.tensorflow.estimate.places import Places
from tensorlens.frameworks.tensorflow.estimate.playing import Play, bytes_of
from tensorlens.frameworks.tensorflow.estimate.requests import Requests
from tensorlens.frameworks.tensorflow.estimate.tracing import Held, Traced, trace
from tensorlens.frameworks.tensorflow.estimate.xla import compiled_by
from tensorlens.records.events import Label
from tensorlens.records.traces import Caution, Trace
from tensorlens.units import format_bytes

_NOTABLE = 1.07
"""How far apart peaks must be to be told, as a ratio."""


@paused()
def run(model: Any, asked: Asked) -> Trace:
    """Return what one train step of a model asks of its device's allocator.

    The model, its weights and its optimizer stay as they are.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    traced = trace(model, asked)
    on_host = asked.device == "cpu"
    as_graph = on_host and not asked.eager
    nodes = as_traced(traced) if asked.eager else optimized(traced, in_order=not on_host)
    if as_graph and onednn.is_used():
        nodes = onednn.rewritten(nodes)
    building = None
    if as_graph:
        before, nodes = nodes, merged(nodes)
        building = Building(nodes, by_onednn=onednn.is_used(), before=before)
    batch = sum(bytes_of(each) for each in traced.feeds)
    xla = compiled_by(model, asked, traced.graph)
    found = Trace(
        framework="tensorflow",
        unsimulated="XLA's buffers are not simulated" if xla else None,
        formulas=popular(traced.layers, asked.batch),
        cautions=[
            *cautions(nodes, asked, traced.layers, batch, xla),
            *(products.cautions(nodes) if on_host else ()),
        ],
        versions={
            "tensorflow": str(tf.__version__),
            "keras": str(keras.__version__),
            "python": platform.python_version(),
        },
    )
    play = Play(traced, nodes, asked, building)
    if as_graph:
        runs: dict[int, Requests] = {}
        orders = in_many_orders(
            lambda seed: runs.setdefault(seed, _requests(play, seed)), by_time=asked.threads > 1
        )
        requests = runs[orders.typical]
        found.spread = orders.low, orders.high + BATCHES_AHEAD * batch
        found.cautions += _told(orders)
    else:
        requests = _requests(play, 0)
    if on_host and asked.eager:
        found.spread = requests.peak, requests.peak + BATCHES_AHEAD * batch
    values = {each.placeholder: _label(each) for each in traced.variables if each.placeholder}
    ledger = Ledger(
        found, "cpu" if on_host else "cuda:0", Places(found.log, traced.graph).of, values
    )
    _label_gradients(traced, nodes, ledger)
    requests.tell(
        ledger,
        lambda each, nbytes: ledger.hold(nbytes, _label(each)),
        lambda: ledger.mark("step 1"),
        _Unknown(found),
    )
    ledger.mark("end")
    found.log.sources = sources_of(found.log, linecache.getlines)
    return found


def _told(orders: Orders) -> list[Caution]:
    if orders.high <= orders.low * _NOTABLE:
        return []
    low, high = format_bytes(orders.low), format_bytes(orders.high)
    return [
        Caution(
            f"of {orders.count} likely orders the peaks are {low} to {high}: the figure is their "
            "median, and a single step may be at either end"
        )
    ]


def _requests(play: Play, seed: int) -> Requests:
    found = Requests()
    found.operations = play.run(found, found.hold, found.began, found.unknown, seed)
    return found


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


def _label(each: Held) -> Label:
    return Label(each.name, each.role, each.dtype, each.shape)


def _label_gradients(traced: Traced, nodes: Sequence[Node], ledger: Ledger) -> None:
    for node in nodes:
        path = traced.gradients.get(node.name)
        if path is not None and node.outputs:
            output = node.outputs[0]
            label = Label(f"{path}.grad", "gradient", output.dtype, output.shape)
            ledger.labels[node.number] = label
