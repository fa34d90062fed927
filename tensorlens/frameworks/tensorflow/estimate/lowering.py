"""Loops of a graph as an executor runs them, made of those that call functions."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.grappler import tf_optimizer

from tensorlens.frameworks.tensorflow.estimate.bodies import set_nodes, source_of
from tensorlens.frameworks.tensorflow.estimate.building import built

TRAIN = "train_op"
"""Where a graph lists what is to be kept of it."""
LOOPS = ("While", "StatelessWhile")
_WAITS = "/LoopControlInputs/_"
_BEGINS = re.compile(r"/(cond|body)/_\d+/input_control_node/_\d+$")
"""In the names of what a loop, and each run of its condition and of its body, waits for."""
_RUNS = "/loop_body_control/_"
_EXECUTED = "/LoopExecuted/_"
"""In the name of what waits for a loop to be over."""
_CALL = re.compile(r"(Func/)?(?P<function>.+/(cond|body))/_(?P<number>\d+)(/(?P<rest>.+))?$")
_END = re.compile(r"(in|out)put(_control_node)?/_(?P<number>\d+)$")
_NUMBER = re.compile(r"(?<=/_)\d+(?=[/:]|_switch|$)")


def lowered(given: Any, settings: Any) -> Any:
    """Return a graph in which loops are what an executor runs.

    TensorFlow lowers the loops of a function before it optimizes it, and nothing keeps one from
    beginning before all that it reads is there (``core/common_runtime/lower_functional_ops.cc``,
    ``lower_while_op.cc``). Grappler lowers with the same code, but lets a loop that reads variables
    wait, and each run of its condition and of its body (``AddStrictInputSemantics`` in
    ``core/grappler/optimizers/function_optimizer.cc``): that is undone here, to the numbers in the
    names, after which Grappler sorts.
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
    graph = tf_optimizer.OptimizeGraph(settings, found, verbose=False)
    free = {loop.name for loop in loops if not any(text[0] == "^" for text in loop.input)}
    _let_begin(graph, free)
    _sort(graph, given.graph_def, loops)
    found.graph_def.CopyFrom(graph)
    kept[:] = names
    return found


def _sort(graph: Any, before: Any, loops: Sequence[Any]) -> None:
    """Have the nodes in the order in which TensorFlow makes them.

    Each loop's own come behind what was there, with numbers at the end of their names; what is in
    the functions of all loops comes last, one function after the other.

    Args:
        graph: with lowered loops, changed in place.
        before: the graph before.
        loops: of it.
    """
    there = {node.name: rank for rank, node in enumerate(before.node)}
    functions = {each.signature.name: each for each in before.library.function}
    inside = {
        f"{loop.name}/{part}": _ranks(functions[loop.attr[part].func.name])
        for loop in loops
        for part in ("cond", "body")
    }
    executed = {
        name.rpartition(_EXECUTED)[0]: int(name.rpartition("_")[2])
        for name in (node.name for node in graph.node)
        if _EXECUTED in name
    }

    def rank(node: Any) -> tuple[int, ...]:
        name = node.name
        if name in executed:
            return 1, executed[name], 1
        if name in there:
            return 0, there[name]
        call = _CALL.match(name)
        if call is not None:
            end = _END.match(call["rest"] or "")
            if end is not None:
                return 2, int(call["number"]), 0 if end[1] == "in" else 2, int(end["number"])
            ranks = inside.get(call["function"], {})
            return 2, int(call["number"]), 1, ranks.get(call["rest"], len(ranks))
        number = name.rpartition("/_")[2]
        return (1, int(number), 0) if number.isdigit() else (3,)

    set_nodes(graph, sorted(graph.node, key=rank))


def _ranks(function: Any) -> dict[str, int]:
    """Return at which place each node of a function is made."""
    names = {node.name: place for place, node in enumerate(function.node_def)}
    sources = [
        [names[source] for source in map(source_of, node.input) if source in names]
        for node in function.node_def
    ]
    return {function.node_def[place].name: rank for rank, place in enumerate(built(sources))}


def _let_begin(graph: Any, free: Collection[str]) -> None:
    """Have loops and what runs in them wait for nothing but what TensorFlow lets them wait for.

    Args:
        graph: with lowered loops, changed in place.
        free: loops that come after no other operation.
    """
    ops = {node.name: node.op for node in graph.node}
    waits = {name for name in ops if _WAITS in name and name.rpartition(_WAITS)[0] in free}
    numbers = sorted(int(name.rpartition(_WAITS)[2]) for name in waits)

    def renamed(text: str) -> str:
        return _NUMBER.sub(lambda each: str(int(each[0]) - bisect(numbers, int(each[0]))), text)

    nodes = [node for node in graph.node if node.name not in waits]
    for node in nodes:
        texts = [text for text in node.input if text[1:] not in waits]
        began = _first(texts, ops) if _BEGINS.search(node.name) else texts
        node.name = renamed(node.name)
        node.input[:] = [renamed(text) for text in began]
    made = [node.SerializeToString() for node in nodes]
    del graph.node[:]
    for text in made:
        graph.node.add().ParseFromString(text)


def _first(texts: Sequence[str], ops: Mapping[str, str]) -> Sequence[str]:
    """Return what begins a run: of a body the loop's condition, of a condition a value of it."""
    conditions = [text for text in texts if _RUNS in text]
    values = [text for text in texts if ops[text[1:]] == "Merge"]
    return conditions or sorted(values, key=lambda text: int(text.rpartition("_")[2]))[:1] or texts
