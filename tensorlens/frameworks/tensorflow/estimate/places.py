"""Where an operation comes from: its stack, layer and phase, as the columns of a log want them."""

from __future__ import annotations

from typing import Any

from tensorlens.frameworks.code import is_foreign
from tensorlens.frameworks.tensorflow.estimate.nodes import Node
from tensorlens.frameworks.tensorflow.graphs import NodeOrigin, Nodes
from tensorlens.records.events import Context, EventLog, Frame

_GRADIENT = "gradient_tape/"


class Places:
    """Looks operations of an optimized graph up in the traced one.

    Args:
        log: whose stacks are added to.
        graph: the traced ``FuncGraph``.
    """

    def __init__(self, log: EventLog, graph: Any) -> None:
        self._stacks = log.stacks
        self._operations = {op.name: op for op in graph.get_operations()}
        self._nodes = Nodes()
        self._known: dict[str, tuple[int, Context]] = {}
        self._named: dict[tuple[str, str], tuple[int, Context]] = {}

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
        frames = [
            Frame(line.filename, line.lineno, line.function, not is_foreign(line.filename))
            for line in origin.stack
        ]
        return self._stacks.add(frames)
