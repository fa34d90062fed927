"""Where an operation comes from: its stack, layer and phase, as the columns of a log want them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tensorlens.frameworks.code import is_foreign
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.graphs import NodeOrigin, Nodes
from tensorlens.records.events import Context, EventLog, Frame
from tensorlens.records.tensors import SourceLine


def _lines_of_user(frame: FrameType | None) -> Sequence[SourceLine]:
    """Return the user's lines of a stack, outermost first."""
    found = []
    while frame is not None:
        code = frame.f_code
        if not is_foreign(code.co_filename):
            found.append(SourceLine(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return found[::-1]


class Places:
    """Looks operations of an optimized graph up in the traced one.

    Args:
        log: whose stacks are added to.
        graph: the traced ``FuncGraph``.
    """

    def __init__(self, log: EventLog, graph: Any) -> None:
        self._stacks = log.stacks
        self._asking = _lines_of_user(sys._getframe(1))
        self._operations = {op.name: op for op in graph.get_operations()}
        self._nodes = Nodes()
        self._known: dict[str, tuple[int, Context]] = {}
        self._named: dict[tuple[str, str], tuple[int, Context]] = {}
        self._numbers: dict[tuple[SourceLine, ...], int] = {}

    def of(self, node: Node, name: str | None) -> tuple[int, Context]:
        """Return the stack and the context of an operation, or of what it takes under a name."""
        known = self._known.get(node.name)
        if known is None:
            known = self._known[node.name] = self._find(node)
        if name is None:
            return known
        key = node.name, name
        if key not in self._named:
            stack, at = known
            context = Context(
                op=name, outer=node.op, phase=at.phase, module=at.module, forward=at.forward
            )
            self._named[key] = stack, context
        return self._named[key]

    def _find(self, node: Node) -> tuple[int, Context]:
        origin = self._origin(node.name)
        if origin is None:
            return -1, Context(op=node.op)
        forward = -1 if origin.forward is None else self._stack(origin.forward)
        context = Context(op=node.op, forward=forward, phase=origin.phase, module=origin.layer)
        return self._stack(origin), context

    def _origin(self, name: str) -> NodeOrigin | None:
        """Return what is known of a name, or of the scopes around it: a loop's, say."""
        while name:
            op = self._operations.get(name)
            if op is not None:
                return self._nodes.of(op)
            name = name.rpartition("/")[0]
        return None

    def _stack(self, origin: NodeOrigin) -> int:
        number = self._numbers.get(origin.stack)
        if number is None:
            number = self._numbers[origin.stack] = self._added(origin.stack)
        return number

    def _added(self, lines: Sequence[SourceLine]) -> int:
        stack = list(lines)
        # whoever asked for the estimate is not part of the program
        for line in self._asking:
            if stack and stack[-1] == line:
                stack.pop()
        frames = [
            Frame(line.filename, line.lineno, line.function, not is_foreign(line.filename))
            for line in stack
        ]
        return self._stacks.add(frames)
