"""Runs a graph without any data, one operation after the other.

Loops, branches and functions that are called run as often as the numbers in the graph say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tensorlens.planning.tensorflow.graph import BRANCHES, LOOPS, Graph, GraphNode
from tensorlens.planning.tensorflow.kernels import Machine
from tensorlens.planning.tensorflow.live_values import NOTHING, Value, drop, keep

_MOST = 100_000
"""Iterations after which a loop ends whose condition never gets false."""


class GraphRun:
    """Runs a step's graph, and the functions that it calls.

    Args:
        machine: whose kernels run.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def run(
        self, graph: Graph, arguments: Sequence[Value], lasts: Mapping[int, int] | None = None
    ) -> list[Value]:
        """Run everything and return the results, each referred to once by the caller.

        Args:
            graph: which one, in the order in which it runs.
            arguments: what it is given; the caller's references become its own.
            lasts: number of an operation to that of the one with whose end its results go; by
                default they go when all that read them have run.
        """
        given = dict(zip(graph.arguments, arguments, strict=True))
        readers = Counter(source for node in graph.nodes for source in node.inputs)
        readers.update(graph.results)
        ends: dict[int, list[int]] = {}
        for number, last in (lasts or {}).items():
            ends.setdefault(last, []).append(number)
        # nobody needs what has the number -1
        there: dict[int, Sequence[Value]] = {-1: ()}
        for node in graph.nodes:
            values = [_slot(there[number], slot) for number, slot in node.inputs]
            if node.number in given:
                outputs: Sequence[Value] = [given[node.number]]
            elif node.calls:
                outputs, values = self._called(node, values), []
            else:
                outputs, scratch = self._machine.run(node, values)
                for value in outputs:
                    keep(value)
                self._drop([Value(buffer) for buffer in scratch])
            there[node.number] = outputs
            self._drop(values)
            for slot, value in enumerate(outputs):
                for _ in range(readers[node.number, slot]):
                    keep(value)
            if lasts is None:
                self._drop(outputs)
            for number in ends.get(node.number, ()):
                self._drop(there[number])
        return [_slot(there[number], slot) for number, slot in graph.results]

    def _called(self, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
        """Return the results of functions, which take the values over.

        A loop's values go as it runs: a list gets shorter as backward takes from it.
        """
        if node.op in LOOPS:
            return self._loop(node, values)
        if node.op not in BRANCHES:
            return self.run(node.calls[0], values)
        condition, *rest = values
        self._drop([condition])
        # taken to be true where it depends on values
        return self.run(node.calls[self._number(node, condition) is False], rest)

    def _loop(self, node: GraphNode, state: Sequence[Value]) -> Sequence[Value]:
        condition, body = node.calls
        for _ in range(_MOST):
            (goes_on,) = self.run(condition, [keep(each) for each in state])
            self._drop([goes_on])
            number = self._number(node, goes_on)
            if number is not False:
                self._machine.begin_iteration()
                state = self.run(body, state)
            if not number:
                break
        self._machine.end_loop()
        return state

    def _number(self, node: GraphNode, condition: Value) -> bool | None:
        if condition.number is None:
            self._machine.unknown(node)
            return None
        return bool(condition.number)

    def _drop(self, values: Sequence[Value]) -> None:
        for value in values:
            drop(value, self._machine.free)


def eager_lasts(
    graph: Graph, until: Mapping[int, int], held: Mapping[int, int]
) -> Mapping[int, int]:
    """Return with the end of which operation Python lets the results of each go.

    Args:
        graph: of the step, as it was traced.
        until: number of an operation to that of the one until whose end a tape keeps its results.
        held: number of an operation to that of another, whose results its own refer to.
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
