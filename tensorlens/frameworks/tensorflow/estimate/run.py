"""From a Keras model to the requests of its training step."""

from __future__ import annotations

import linecache
import platform
from collections.abc import Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tensorlens.frameworks.native.logs import sources_of
from tensorlens.frameworks.tensorflow.estimate.asked import Asked
from tensorlens.frameworks.tensorflow.estimate.cpu import scratch as cpu_scratch
from tensorlens.frameworks.tensorflow.estimate.cpu import with_positions
from tensorlens.frameworks.tensorflow.estimate.eager import EagerRun
from tensorlens.frameworks.tensorflow.estimate.executor import Executor
from tensorlens.frameworks.tensorflow.estimate.formula import popular
from tensorlens.frameworks.tensorflow.estimate.held import Buffer, Value, keep
from tensorlens.frameworks.tensorflow.estimate.kernels import Machine
from tensorlens.frameworks.tensorflow.estimate.ledger import Ledger
from tensorlens.frameworks.tensorflow.estimate.nodes import ITEM_SIZES, Node
from tensorlens.frameworks.tensorflow.estimate.optimizing import as_traced, optimized
from tensorlens.frameworks.tensorflow.estimate.places import Places
from tensorlens.frameworks.tensorflow.estimate.tape import kept_until
from tensorlens.frameworks.tensorflow.estimate.tracing import Traced, trace
from tensorlens.records.events import Label
from tensorlens.records.traces import Caution, Trace


def run(model: Any, asked: Asked) -> Trace:
    """Return what one train step of a model asks of its device's allocator.

    The model, its weights and its optimizer stay as they are.

    Raises:
        UsageError: the shapes of the model's inputs are not known.
    """
    traced = trace(model, asked)
    found = Trace(
        versions={
            "tensorflow": str(tf.__version__),
            "keras": str(keras.__version__),
            "python": platform.python_version(),
        }
    )
    nodes = as_traced(traced) if asked.eager else optimized(traced)
    if asked.device == "cpu" and not asked.eager:
        with_positions(nodes)
    device = "cpu" if asked.device == "cpu" else "cuda:0"
    ledger = Ledger(found, device, Places(found.log, traced.graph).of)
    machine = _machine(traced, ledger, found, forwards=not asked.eager)
    _label_gradients(traced, nodes, ledger)
    ledger.mark("step 1")
    fetched = _fetched(traced, nodes)
    if asked.eager:
        numbers = {node.name: node.number for node in nodes}
        until = kept_until(traced.calls, numbers)
        kept = {number for number, _ in fetched}
        EagerRun(nodes, machine, until, kept).run()
    else:
        Executor(nodes, machine, asked.threads, fetched).run()
    ledger.mark("end")
    found.framework = "tensorflow"
    found.formulas = popular(traced.layers, asked.batch)
    found.log.sources = sources_of(found.log, linecache.getlines)
    return found


def _machine(traced: Traced, ledger: Ledger, found: Trace, *, forwards: bool) -> Machine:
    variables: dict[str, Value] = {}
    for number, each in enumerate(traced.variables):
        value = _held(each, ledger)
        variables[each.placeholder or f"unread {number}"] = value
    feeds = {each.placeholder: _held(each, ledger) for each in traced.feeds}
    unknown: set[str] = set()

    def tell(node: Node) -> None:
        if node.op not in unknown:
            unknown.add(node.op)
            text = f"the shape of what {node.op} makes ({node.name}) is not known: it is left out"
            found.cautions.append(Caution(text))

    return Machine(ledger, variables, feeds, cpu_scratch, tell, forwards)


def _held(each: Any, ledger: Ledger) -> Value:
    nbytes = prod(each.shape) * ITEM_SIZES.get(each.dtype, 0)
    row = ledger.hold(nbytes, Label(each.name, each.role, each.dtype, each.shape))
    return keep(Value(Buffer(nbytes, row), each.shape))


def _label_gradients(traced: Traced, nodes: Sequence[Node], ledger: Ledger) -> None:
    for node in nodes:
        path = traced.gradients.get(node.name)
        if path is not None and node.outputs:
            output = node.outputs[0]
            label = Label(f"{path}.grad", "gradient", output.dtype, output.shape)
            ledger.labels[node.number] = label


def _fetched(traced: Traced, nodes: Sequence[Node]) -> set[tuple[int, int]]:
    numbers = {node.name: node.number for node in nodes}
    outputs = ((each.op.name, each.value_index) for each in traced.graph.outputs)
    return {(numbers[name], slot) for name, slot in outputs if name in numbers}
