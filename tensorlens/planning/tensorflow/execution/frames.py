"""Loops of a graph as its executor runs them: frames, their iterations, and what arrived where.

The rules are those of ``core/common_runtime/executor.cc``, ``propagator_state.cc`` and
``entry.h`` of TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorlens.planning.tensorflow.execution.live_values import Value
from tensorlens.planning.tensorflow.graph.nodes import ENTERS, Node


@dataclass(slots=True, eq=False)
class Arrivals:
    """Inputs that an operation waits for in one iteration."""

    waiting: int
    """Inputs and controls that are not there yet; of a merge, controls alone."""
    values: list[Value]
    """Inputs that have come, by their places; of a merge, the first that came."""
    dead_inputs: int = 0
    is_dead: bool = False
    is_scheduled: bool = False
    has_value: bool = False


@dataclass(slots=True, eq=False)
class Iteration:
    """One pass through a loop's body; the whole graph is the only one of the outermost frame."""

    frame: Frame
    number: int
    arrived: dict[int, Arrivals] = field(default_factory=dict)
    outstanding: int = 0
    """Operations that were scheduled and have not ended, and loops inside of it."""


@dataclass(slots=True, eq=False)
class Frame:
    """One run of a loop."""

    name: str
    parent: Iteration | None
    parallel: int = 10
    """Iterations that may run at the same time."""
    entries: int = 0
    """Values that have still to enter."""
    iterations: dict[int, Iteration] = field(default_factory=dict)
    newest: int = 0
    invariants: list[tuple[Node, Value]] = field(default_factory=list)
    """Values that every iteration is given anew."""
    queued: list[tuple[Node, Value]] = field(default_factory=list)
    """Values for the next iteration, which must not begin yet."""
    exits: set[int] = field(default_factory=set)
    """Operations that have handed a value out of the loop."""
    dead_exits: dict[int, Node] = field(default_factory=dict)
    inside: dict[tuple[int, str], Frame] = field(default_factory=dict)
    """By number of the iteration and name: loops that run within this one."""

    def begin(self, number: int) -> Iteration:
        """Return a new iteration."""
        made = self.iterations[number] = Iteration(self, number)
        self.newest = max(self.newest, number)
        return made


def entries_by_frame(nodes: Sequence[Node]) -> dict[str, int]:
    """Return how many values enter each loop, by the loop's name."""
    found: dict[str, int] = {}
    for node in nodes:
        if node.op in ENTERS:
            name = str(node.attrs["frame_name"])
            found[name] = found.get(name, 0) + 1
    return found
