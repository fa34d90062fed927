"""Writes the allocations and frees of a run without data into a trace, with line and layer."""

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
    """Writes the rows of one device.

    Args:
        trace: the trace to write into.
        device: name of the device.
        function: name of the traced step in TensorFlow's runtime, where the origins of operations
            are looked up.
        variables: placeholder of each variable to the label of its value.
    """

    def __init__(
        self, trace: Trace, device: str, function: str, variables: Mapping[str, Label]
    ) -> None:
        self._variables = variables
        self._trace, self._log, self._device = trace, trace.log, device
        self._function, self._nodes = function, Nodes()
        callers = traceback.walk_stack(sys._getframe(1))
        files = ((frame.f_code, lineno) for frame, lineno in callers)
        self._estimate_callers = [
            SourceLine(code.co_filename, lineno, code.co_name)
            for code, lineno in files
            if not is_foreign(code.co_filename)
        ]
        """The user's lines that asked for the estimate, innermost first."""
        self._places: dict[tuple[str, str | None], tuple[int, Context]] = {}
        self._numbers = 0
        self.labels: dict[int, Label] = {}
        """Operation number to the label of its first result."""
        self._now = self.peak = 0

    def mark(self, name: str) -> None:
        """Begin a part of the run."""
        self._log.marks.append(Mark(name, len(self._log), 0))

    def hold(self, nbytes: int, label: Label) -> int:
        """Add memory that exists before any operation, and return its row."""
        row = self._append(nbytes, -1, None)
        self._log.name(row, label)
        return row

    def take(self, nbytes: int, node: GraphNode | None, name: str | None = None) -> int:
        """Add an allocation of an operation, and return its row."""
        row = self._append(nbytes, *self._place(node, name))
        if name is not None:
            self._trace.scratch[row] = name
        elif node is not None and node.number in self.labels:
            label = self.labels[node.number]
            if node.outputs and node.outputs[0].nbytes == nbytes:
                self._log.name(row, label)
        return row

    def bound(self, row: int, least: int, likely: int, most: int) -> None:
        """Set the likely size of a row, and its bounds."""
        self._trace.bounds[row] = least, most
        self._now += likely - self._log.size[row]
        self._log.size[row] = likely

    def give(self, row: int, node: GraphNode | None) -> None:
        """Add the free of a row."""
        log = self._log
        self._now -= log.size[row]
        place = self._place(node)
        log.append(FREE, self._device, log.address[row], log.size[row], len(log), *place)

    def assign(self, variable: str, row: int, old: int, node: GraphNode | None) -> None:
        """Make a row the value of a variable in place of ``old``, which may be -1."""
        label = self._variables.get(variable)
        if label is None:
            return
        if old >= 0:
            replaced = replace(label, name=f"{label.name} before its update", role="temporary")
            self._hand_over(old, replaced, node)
        self._hand_over(row, label, node)

    def _hand_over(self, row: int, label: Label, node: GraphNode | None) -> None:
        log, place = self._log, self._place(node)
        self._trace.handovers.append(Handover(len(log), log.address[row], label, *place))

    def _place(self, node: GraphNode | None, name: str | None = None) -> tuple[int, Context | None]:
        """Return the stack and context of an operation, or of its scratch called ``name``."""
        if node is None:
            return -1, None
        key = node.name, name
        if key not in self._places:
            stack, context = self._find(node)
            if name is not None:
                context = replace(context, op=name, outer=node.op)
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
        # the callers of the estimate are not part of the program
        for line in reversed(self._estimate_callers):
            if stack and stack[-1] == line:
                stack.pop()
        return self._log.stacks.add(list(map(frame_of, stack)))

    def _append(self, nbytes: int, stack: int, context: Context | None) -> int:
        self._numbers += 1
        self._now += nbytes
        self.peak = max(self.peak, self._now)
        log = self._log
        return log.append(ALLOC, self._device, self._numbers, nbytes, len(log), stack, context)
