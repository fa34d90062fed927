"""Runs a graph as Python would run its operations one by one (``run_eagerly=True``).

Operations come in the order of the program. A result lives until it is last read: forward results
that backward reads are what the tape keeps. No buffer is written over, as Python still refers to
what an operation is given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tensorlens.frameworks.tensorflow.estimate.held import NOTHING, Value, drop, keep
from tensorlens.frameworks.tensorflow.estimate.kernels import Machine
from tensorlens.frameworks.tensorflow.estimate.nodes import Node


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
