"""Loops of a graph as an executor runs them, made of those that call functions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensorflow.core.protobuf import rewriter_config_pb2

from tensorlens.frameworks.tensorflow.estimate import grappler
from tensorlens.frameworks.tensorflow.estimate.graph_defs import set_nodes

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
    graph = grappler.optimize(settings, found)
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
