"""Runs a step's graph, or its operations one by one, against a device's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tensorlens.planning.tensorflow.execution import cuda
from tensorlens.planning.tensorflow.execution.cpu import scratch as cpu_scratch
from tensorlens.planning.tensorflow.execution.executor import Executor, Order
from tensorlens.planning.tensorflow.execution.kernels import Machine
from tensorlens.planning.tensorflow.execution.live_values import (
    NOTHING,
    Buffer,
    Memory,
    Value,
    drop,
    keep,
)
from tensorlens.planning.tensorflow.graph.nodes import ITEM_SIZES, Node
from tensorlens.planning.tensorflow.graph.tape import kept_until
from tensorlens.planning.tensorflow.graph.tracing import StepInput, TracedStep
from tensorlens.planning.tensorflow.request import TraceRequest


class EagerRun:
    """Runs one graph once.

    Args:
        nodes: the graph as it was traced.
        machine: whose kernels run.
        until: number of an operation to that of the one with whose end Python lets its results go.
        fetched: operations whose results are kept to the end.
        held: number of an operation to that of another, whose results its own refer to.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        machine: Machine,
        until: Mapping[int, int],
        fetched: Collection[int] = (),
        held: Mapping[int, int] | None = None,
    ) -> None:
        self._nodes = nodes
        self._machine = machine
        self._until = until
        self._fetched = frozenset(fetched)
        self._held = held or {}

    def run(self) -> None:
        """Run everything."""
        free = self._machine.free
        ends: dict[int, list[int]] = {}
        for number, last in enumerate(self._lasts()):
            ends.setdefault(last, []).append(number)
        there: dict[int, Sequence[Value]] = {}
        for node in self._nodes:
            values = [
                there[source][slot] if slot < len(there.get(source, ())) else NOTHING
                for source, slot in node.inputs
            ]
            outputs, scratch = self._machine.run(node, values)
            there[node.number] = [keep(value) for value in outputs]
            for buffer in scratch:
                drop(Value(buffer), free)
            for number in ends.get(node.number, ()):
                for value in there.pop(number, ()):
                    drop(value, free)

    def _lasts(self) -> list[int]:
        """Return with the end of which operation the results of each go."""
        found: list[int] = []
        for node in self._nodes:
            readers = [number for slot, number, _ in node.consumers if slot >= 0]
            last = max(readers, default=node.number)
            last = max(last, self._until.get(node.number, 0))
            found.append(len(self._nodes) - 1 if node.number in self._fetched else last)
        for holder, held in sorted(self._held.items(), reverse=True):
            found[held] = max(found[held], found[holder])
        return found


@dataclass(frozen=True, slots=True)
class StepExecution:
    """A step that can be run any number of times."""

    traced: TracedStep
    nodes: Sequence[Node]
    asked: TraceRequest

    def run(
        self,
        memory: Memory,
        hold: Callable[[StepInput, int], int],
        began: Callable[[], None],
        unknown: Callable[[Node], None],
        order: Order = Order.FIRST_READY,
    ) -> None:
        """Run it once.

        Args:
            memory: takes note of every request.
            hold: gives the row of what is there before the step, by its bytes.
            began: called when all of that is there.
            unknown: told an operation whose results have no shape.
            order: of operations that are ready together, where a graph runs.
        """
        asked, traced = self.asked, self.traced
        variables: dict[str, Value] = {}
        for number, each in enumerate(traced.variables):
            variables[each.placeholder or f"unread {number}"] = _there(each, hold)
        feeds = {each.placeholder: _there(each, hold) for each in traced.feeds}
        began()
        on_host = asked.device == "cpu"
        machine = Machine(
            memory,
            variables,
            feeds,
            cpu_scratch if on_host else cuda.scratch_of(asked.card),
            unknown,
            forwards=not asked.eager,
        )
        numbers = {node.name: node.number for node in self.nodes}
        fetched = self._fetched(numbers)
        if asked.eager:
            until = kept_until(traced.calls, numbers)
            held = {numbers[one]: numbers[other] for one, other in traced.held.items()}
            EagerRun(self.nodes, machine, until, {number for number, _ in fetched}, held).run()
            return
        Executor(self.nodes, machine, fetched, order).run()

    def _fetched(self, numbers: Mapping[str, int]) -> set[tuple[int, int]]:
        outputs = ((each.op.name, each.value_index) for each in self.traced.graph.outputs)
        return {(numbers[name], slot) for name, slot in outputs if name in numbers}


def bytes_of(each: StepInput) -> int:
    """Return what it takes."""
    return prod(each.shape) * ITEM_SIZES.get(each.dtype, 0)


def _there(each: StepInput, hold: Callable[[StepInput, int], int]) -> Value:
    nbytes = bytes_of(each)
    return keep(Value(Buffer(nbytes, hold(each, nbytes)), each.shape))
