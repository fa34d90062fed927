"""Runs a graph without any data, one operation at a time.

An operation is ready when all that it reads is there. Which of those that are ready together come
first, TensorFlow's threads decide anew in each step; two orders stand for all of them
(:class:`Order`). Loops follow ``core/common_runtime/executor.cc`` (TensorFlow 2.21).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tensorlens.planning.tensorflow.execution.frames import (
    Arrivals,
    Frame,
    Iteration,
    entries_by_frame,
)
from tensorlens.planning.tensorflow.execution.live_values import (
    NOTHING,
    Buffer,
    Value,
    drop,
    keep,
)
from tensorlens.planning.tensorflow.graph.nodes import BACK, ENTERS, Node, starts_of

_CHEAP = frozenset(
    (
        *("Const", "NoOp", "Identity", "IdentityN", "Reshape", "Squeeze", "ExpandDims", "_Arg"),
        *("Placeholder", "VarHandleOp", "Switch", "Merge", "Enter", "Exit", "NextIteration"),
        *("LoopCond", "Shape", "ShapeN", "Size", "Rank", "StopGradient", "_Retval"),
        *("ControlTrigger", "VariableShape"),
    )
)
"""Kernels whose ``IsExpensive()`` is false."""
_PRODUCTS = frozenset(("MatMul", "_FusedMatMul", "BatchMatMul", "BatchMatMulV2", "Einsum"))
_SMALL = 64 << 10
"""Bytes read and written by a kernel that soon counts as cheap: TensorFlow takes the time of each,
and a thread runs those itself whose average is below 8000 cycles."""
_MERGES = ("Merge", "RefMerge")
_MOST = 2_000_000
"""Operations after which a run ends: a loop that does not."""


class Order(StrEnum):
    """Which of the operations that are ready together come first."""

    FIRST_READY = "first ready first"
    CHEAP_FIRST = "cheap first"
    """Cheap kernels as they get ready; then of the others the last, as in the executor's pool."""


class Kernels(Protocol):
    """Gives what an operation makes of what it is given."""

    def run(self, node: Node, values: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Buffer]]:
        """Return its outputs, each referred to by nobody, and what it gives back when it ends."""

    def free(self, buffer: Buffer) -> None:
        """Give a buffer's bytes back."""


@dataclass(slots=True)
class _Task:
    node: Node
    iteration: Iteration
    values: Sequence[Value]
    is_dead: bool


class Executor:
    """Runs one graph once.

    Args:
        nodes: the graph, connected.
        kernels: what operations do.
        fetched: number of an operation and of its output that the caller keeps.
        order: of operations that are ready together.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        kernels: Kernels,
        fetched: Collection[tuple[int, int]] = (),
        order: Order = Order.FIRST_READY,
    ) -> None:
        self._nodes = nodes
        self._targets = [
            [(slot, nodes[number], place) for slot, number, place in node.consumers]
            for node in nodes
        ]
        self._waits = [_waits_for(node) for node in nodes]
        self._kernels = kernels
        self._fetched: dict[int, list[int]] = {}
        for number, slot in fetched:
            self._fetched.setdefault(number, []).append(slot)
        self._entries = entries_by_frame(nodes)
        self._order = order
        self._kept: list[Value] = []
        self._cheap: deque[_Task] = deque()
        self._costly: list[_Task] = []
        self._is_cheap: dict[int, bool] = {}

    def run(self) -> int:
        """Run everything and return how many operations that were.

        What is fetched is let go of at the end.
        """
        root = Frame("", None).begin(0)
        starts = [_Task(node, root, (), False) for node in starts_of(self._nodes)]
        root.outstanding += len(starts)
        self._schedule(starts)
        count = 0
        while (self._cheap or self._costly) and count < _MOST:
            self._run_one(self._cheap.popleft() if self._cheap else self._costly.pop())
            count += 1
        for value in self._kept:
            drop(value, self._kernels.free)
        return count

    def _run_one(self, task: _Task) -> None:
        free = self._kernels.free
        node, iteration = task.node, task.iteration
        outputs: Sequence[Value] | None = None
        if not task.is_dead:
            outputs, scratch = self._kernels.run(node, task.values)
            for value in outputs:
                keep(value)
            for buffer in scratch:
                drop(Value(buffer), free)
            self._kept += [
                keep(outputs[slot])
                for slot in self._fetched.get(node.number, ())
                if slot < len(outputs)
            ]
        for value in task.values:
            drop(value, free)
        ready: list[_Task] = []
        self._propagate(node, iteration, outputs, ready)
        for value in outputs or ():
            drop(value, free)
        iteration.outstanding -= 1
        self._clean(iteration, ready)
        self._schedule(ready)

    def _schedule(self, ready: Sequence[_Task]) -> None:
        for task in ready:
            if self._order is Order.FIRST_READY or task.is_dead or self._costs_little(task):
                self._cheap.append(task)
            else:
                self._costly.append(task)

    def _costs_little(self, task: _Task) -> bool:
        """Tell whether a thread runs it itself: in a loop, as the first time."""
        node = task.node
        known = self._is_cheap.get(node.number)
        if known is None:
            made = sum(each.nbytes or 0 for each in node.outputs)
            moved = made + sum(each.nbytes for each in task.values)
            is_small = moved < _SMALL and node.op not in _PRODUCTS
            known = self._is_cheap[node.number] = node.op in _CHEAP or is_small
        return known

    def _propagate(
        self, node: Node, into: Iteration, outputs: Sequence[Value] | None, ready: list[_Task]
    ) -> None:
        """Hand what was made (None: nothing, it is dead) to those who come after."""
        between_frames = _BETWEEN_FRAMES.get(node.op)
        if between_frames is None:
            self._activate(node, into, outputs, ready)
        else:
            between_frames(self, node, into, outputs, ready)

    def _exit(
        self, node: Node, into: Iteration, outputs: Sequence[Value] | None, ready: list[_Task]
    ) -> None:
        if outputs is None:
            into.frame.dead_exits[node.number] = node
        else:
            into.frame.exits.add(node.number)
            assert into.frame.parent is not None
            self._activate(node, into.frame.parent, outputs, ready)

    def _enter(
        self, node: Node, into: Iteration, outputs: Sequence[Value] | None, ready: list[_Task]
    ) -> None:
        name = str(node.attrs["frame_name"])
        key = into.number, name
        frame = into.frame.inside.get(key)
        if frame is None:
            parallel = int(node.attrs.get("parallel_iterations", 10))
            frame = Frame(name, into, parallel, self._entries[name])
            into.frame.inside[key] = frame
            frame.begin(0)
            into.outstanding += 1
        frame.entries -= 1
        if node.attrs.get("is_constant") and outputs is not None:
            frame.invariants.append((node, keep(outputs[0])))
            for iteration in list(frame.iterations.values()):
                self._activate(node, iteration, outputs, ready)
        else:
            first = frame.iterations.get(0) or frame.begin(0)
            self._activate(node, first, outputs, ready)

    def _advance(
        self, node: Node, into: Iteration, outputs: Sequence[Value] | None, ready: list[_Task]
    ) -> None:
        if outputs is None:
            return
        frame = into.frame
        following = frame.iterations.get(into.number + 1)
        if following is None and len(frame.iterations) >= frame.parallel:
            frame.queued.append((node, keep(outputs[0])))
            return
        if following is None:
            following = self._begin_iteration(frame, into.number + 1, ready)
        self._activate(node, following, outputs, ready)

    def _begin_iteration(self, frame: Frame, number: int, ready: list[_Task]) -> Iteration:
        made = frame.begin(number)
        for node, value in frame.invariants:
            self._activate(node, made, (value,), ready)
        return made

    def _activate(
        self, node: Node, into: Iteration, outputs: Sequence[Value] | None, ready: list[_Task]
    ) -> None:
        is_switch = node.op == "Switch"
        for slot, target, place in self._targets[node.number]:
            value = None if slot < 0 or outputs is None else outputs[slot]
            if is_switch and value is NOTHING:
                value = None
            is_dead = outputs is None or (slot >= 0 and value is None)
            state = into.arrived.get(target.number)
            if state is None:
                state = Arrivals(self._waits[target.number], [NOTHING] * len(target.inputs))
                into.arrived[target.number] = state
            if target.op in _MERGES:
                self._arrive_at_merge(target, into, state, place, value, node, ready)
                continue
            state.waiting -= 1
            if is_dead:
                state.is_dead = True
            elif value is not None:
                state.values[place] = keep(value)
            if not state.waiting:
                self._make_ready(target, into, state, state.is_dead, ready)

    def _arrive_at_merge(
        self,
        target: Node,
        into: Iteration,
        state: Arrivals,
        place: int,
        value: Value | None,
        source: Node,
        ready: list[_Task],
    ) -> None:
        """Let a merge, which waits for all that comes first but for one value, be given one."""
        if state.is_scheduled:
            return
        if place < 0:
            state.waiting -= 1
        elif value is None:
            state.dead_inputs += 1
            from_outside = source.op in ENTERS
            state.is_dead |= from_outside or state.dead_inputs == len(target.inputs)
        elif not state.has_value:
            state.has_value = True
            state.values = [keep(value)]
        if not state.waiting and (state.has_value or state.is_dead):
            state.is_scheduled = True
            self._make_ready(target, into, state, not state.has_value, ready)

    def _make_ready(
        self, target: Node, into: Iteration, state: Arrivals, is_dead: bool, ready: list[_Task]
    ) -> None:
        into.outstanding += 1
        ready.append(_Task(target, into, state.values, is_dead))
        state.values = []

    def _clean(self, iteration: Iteration, ready: list[_Task]) -> None:
        """End iterations that are over, and with the last one their frame."""
        frame = iteration.frame
        if frame.parent is None:
            return
        while frame.iterations:
            number, first = next(iter(frame.iterations.items()))
            if first.outstanding or (frame.entries > 0):
                return
            for state in first.arrived.values():
                for value in state.values:
                    drop(value, self._kernels.free)
            del frame.iterations[number]
            if (frame.queued and number + 1 not in frame.iterations) or frame.queued:
                self._begin_queued(frame, ready)
        for _, value in frame.invariants:
            drop(value, self._kernels.free)
        frame.invariants = []
        for number, node in frame.dead_exits.items():
            if number not in frame.exits:
                self._activate(node, frame.parent, None, ready)
        parent = frame.parent
        parent.frame.inside.pop((parent.number, frame.name), None)
        parent.outstanding -= 1
        self._clean(parent, ready)

    def _begin_queued(self, frame: Frame, ready: list[_Task]) -> None:
        queued, frame.queued = frame.queued, []
        made = frame.begin(frame.newest + 1)
        for node, value in queued:
            self._activate(node, made, (value,), ready)
            drop(value, self._kernels.free)
        for node, value in frame.invariants:
            self._activate(node, made, (value,), ready)


def _waits_for(node: Node) -> int:
    """Return for how many inputs and controls it waits; a merge, for controls alone."""
    return len(node.controls) + (0 if node.op in _MERGES else len(node.inputs))


_BETWEEN_FRAMES = {
    **dict.fromkeys(ENTERS, Executor._enter),
    **dict.fromkeys(("Exit", "RefExit"), Executor._exit),
    **dict.fromkeys(BACK, Executor._advance),
}
"""Operations that hand on what they make to another iteration."""
