"""Writes what a run without data takes and gives back, with line and layer, into a trace."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from dataclasses import replace

from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.origins import NodeOrigin, frame_of
from tensorlens.planning.tensorflow.graphs.graph import GraphNode
from tensorlens.planning.trace import Handover, Trace
from tensorlens.records.logs.events import ALLOC, FREE, Context, Label, Mark
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign


class TraceWriter:
    """Rows of one device.

    Args:
        trace: to write into.
        device: whose memory it is.
        function: the name that the traced step has in TensorFlow's runtime, where it lives: there
            operations of the optimized graph are looked up.
        variables: the name that the graph has for a variable to what its value is.
    """

    def __init__(
        self, trace: Trace, device: str, function: str, variables: Mapping[str, Label]
    ) -> None:
        self._variables = variables
        self._trace, self._log, self._device = trace, trace.log, device
        self._function, self._nodes = function, Nodes()
        callers = traceback.walk_stack(sys._getframe(1))
        files = ((frame.f_code, lineno) for frame, lineno in callers)
        self._asking = [
            SourceLine(code.co_filename, lineno, code.co_name)
            for code, lineno in files
            if not is_foreign(code.co_filename)
        ]
        """The user's lines that asked, innermost first."""
        self._places: dict[tuple[str, str | None], tuple[int, Context]] = {}
        self._numbers = 0
        self.labels: dict[int, Label] = {}
        """Number of an operation to what its first result is."""
        self._now = self.peak = 0

    def mark(self, name: str) -> None:
        """Begin a part of the run."""
        self._log.marks.append(Mark(name, len(self._log), 0))

    def hold(self, nbytes: int, label: Label) -> int:
        """Return the row of something that is there before any operation."""
        row = self._append(nbytes, -1, None)
        self._log.name(row, label)
        return row

    def take(self, nbytes: int, operation: GraphNode | None, name: str | None = None) -> int:
        """Return the row of what an operation takes."""
        row = self._append(nbytes, *self._place(operation, name))
        if name is not None:
            self._trace.scratch[row] = name
        elif operation is not None and operation.number in self.labels:
            label = self.labels[operation.number]
            if operation.outputs and operation.outputs[0].nbytes == nbytes:
                self._log.name(row, label)
        return row

    def bound(self, row: int, least: int, likely: int, most: int) -> None:
        """Note between which bounds the size of a row is."""
        self._trace.bounds[row] = least, most
        self._now += likely - self._log.size[row]
        self._log.size[row] = likely

    def give(self, row: int, operation: GraphNode | None) -> None:
        """Note that a row's bytes went."""
        log = self._log
        self._now -= log.size[row]
        place = self._place(operation)
        log.append(FREE, self._device, log.address[row], log.size[row], len(log), *place)

    def assign(self, variable: str, row: int, old: int, operation: GraphNode | None) -> None:
        """Note that a row is a variable's value now, and another one, or -1, no longer is."""
        label = self._variables.get(variable)
        if label is None:
            return
        if old >= 0:
            replaced = replace(label, name=f"{label.name} before its update", role="temporary")
            self._hand_over(old, replaced, operation)
        self._hand_over(row, label, operation)

    def _hand_over(self, row: int, label: Label, operation: GraphNode | None) -> None:
        log, place = self._log, self._place(operation)
        self._trace.handovers.append(Handover(len(log), log.address[row], label, *place))

    def _place(
        self, operation: GraphNode | None, name: str | None = None
    ) -> tuple[int, Context | None]:
        """Return the stack and the context of an operation, or of what it takes under a name."""
        if operation is None:
            return -1, None
        key = operation.name, name
        if key not in self._places:
            stack, context = self._find(operation)
            if name is not None:
                context = replace(context, op=name, outer=operation.op)
            self._places[key] = stack, context
        return self._places[key]

    def _find(self, node: GraphNode) -> tuple[int, Context]:
        origin = self._nodes.find(node.name, self._function)
        if origin is None:
            return -1, Context(op=node.op)
        forward = -1 if origin.forward is None else self._stack(origin.forward)
        context = Context(op=node.op, forward=forward, phase=origin.phase, module=origin.layer)
        return self._stack(origin), context

    def _stack(self, origin: NodeOrigin) -> int:
        stack = list(origin.stack)
        # whoever asked for the estimate is not part of the program
        for line in reversed(self._asking):
            if stack and stack[-1] == line:
                stack.pop()
        return self._log.stacks.add(list(map(frame_of, stack)))

    def _append(self, nbytes: int, stack: int, context: Context | None) -> int:
        self._numbers += 1
        self._now += nbytes
        self.peak = max(self.peak, self._now)
        log = self._log
        return log.append(ALLOC, self._device, self._numbers, nbytes, len(log), stack, context)
