"""Adds the lines, layers and phases of graph nodes to a log."""

from __future__ import annotations

import os
import re
import time
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from tensorlens.frameworks.host.recorder import LogParts
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes, bare_name
from tensorlens.frameworks.tensorflow.graphs.origins import NodeOrigin, frame_of
from tensorlens.frameworks.tensorflow.graphs.runtime_blocks import (
    DATA,
    describe_data_or_constant,
    function_title,
    is_folded,
    is_keras_data,
)
from tensorlens.frameworks.tensorflow.hooks import follow_graph_calls
from tensorlens.records.families import HANDLES
from tensorlens.records.logs.events import ALLOC, GRAPH_CALL, Context, EventLog, Label

_OWN_CODE = str(Path(__file__).parents[3]) + os.sep
_TENSORFLOW = f"{os.sep}tensorflow{os.sep}python{os.sep}"
"""Part of the paths of TensorFlow's code, which lies between the line that calls a function and the
function's nodes. The first call goes through other lines of it than later calls."""
_MAX_CALLS = 1 << 14
"""Calls of a recording that are marked, the latest."""
_HANDLE = "VarHandleOp"
_BODY = re.compile(r"^.*/(?:body|cond|then|else|branch_?\d*|branches)/_\d+/")
"""Prefix of the nodes of an inlined loop or branch."""
_NUMBER = re.compile(r"(?<=[A-Za-z])_\d+$")


class GraphOrigins:
    """Amends a log with the origins of graph nodes."""

    def __init__(self) -> None:
        self._nodes = Nodes()
        self._calls: deque[int] = deque(maxlen=_MAX_CALLS)
        """When functions were called from Python, in monotonic nanoseconds."""

    def start(self) -> Callable[[], None]:
        """Start noting calls of functions; return a function that ends this.

        Also read functions that die before the end, such as those of ``fit``'s pipelines.
        """
        seen: set[str] = set()
        functions = self._nodes.functions

        def begin(name: str) -> None:
            self._calls.append(time.monotonic_ns())
            if name not in seen:
                seen.add(name)
                functions.catch_up()

        return follow_graph_calls(begin)

    def amend(self, log: EventLog, parts: LogParts) -> None:
        """Put the node's stack below that of the call, for each event in a graph function.

        The innermost frames are then the code that made the node; the outer ones lead to the line
        that called the function. Also add a mark for each call.
        """
        calls = ((GRAPH_CALL, call - parts.started) for call in [*self._calls])
        log.add_marks(calls, parts.taken.dropped)
        amended = cache(lambda number: self._amended(log, number))
        label = cache(lambda number, stack, nbytes: self._label(log, number, stack, nbytes))
        stacks: dict[tuple[int, int], int] = {}
        last: dict[int, tuple[int, int]] = {}  # stack and context of the last node of each thread
        new_stacks, new_contexts = array("i"), array("i")
        for row, (stack, number) in enumerate(zip(log.stack, log.context, strict=True)):
            if log.label[row] < 0 and log.kind[row] <= ALLOC:
                found = label(number, stack, log.size[row])
                if found is not None:
                    log.name(row, found)
            changed, origin = amended(number)
            new = stack, changed
            if origin is not None:
                key = stack, number
                if key not in stacks:
                    stacks[key] = _push(log, _callers(log, stack), origin)
                new = stacks[key], changed
            if number >= 0:
                before = log.contexts[number]
                if before.outer is not None and before.op is None:
                    # between the nodes of a function: a node's results are freed after its end
                    new = last.get(before.thread, (_callers(log, stack), changed))
                else:
                    last[before.thread] = new
            new_stacks.append(new[0])
            new_contexts.append(new[1])
        log.stack, log.context = new_stacks, new_contexts

    def _label(self, log: EventLog, number: int, stack: int, nbytes: int) -> Label | None:
        context = log.contexts[number] if number >= 0 else Context()
        if context.op is None:
            return Label(DATA, "input") if is_keras_data(log.stacks.of(stack)) else None
        if context.op == _HANDLE:
            # of a variable that died before the end
            return Label(HANDLES, "other")
        block = describe_data_or_constant(
            self._nodes,
            context.op,
            context.outer,
            nbytes,
            by_python=stack >= 0,
            is_folded=is_folded(context.op),
        )
        return None if block is None else Label(block.base, block.role)

    def _amended(self, log: EventLog, number: int) -> tuple[int, NodeOrigin | None]:
        """Return the number of the context that replaces one, and the origin of its node."""
        context = log.contexts[number] if number >= 0 else Context()
        if context.outer is None:
            return number, None
        origin = self._nodes.find(context.op, context.outer) if context.op is not None else None
        if origin is None:
            called = replace(context, outer=function_title(context.outer))
            return log.contexts.number(called), None
        is_backward = origin.phase == "backward"
        forward = -1
        if is_backward and origin.forward is not None:
            forward = _push(log, -1, origin.forward)
        amended = replace(
            context,
            op=origin.op if origin.layer else _short_name(context.op or ""),
            outer=None,
            node=origin.op if is_backward else None,
            forward=forward,
            phase=origin.phase,
            module=origin.layer,
        )
        return log.contexts.number(amended), origin


def _callers(log: EventLog, stack: int) -> int:
    """Return a stack without the innermost frames of TensorFlow and of our hooks."""
    stacks = log.stacks
    while stack >= 0:
        file = stacks.frames[stacks.frame[stack]].filename
        if _TENSORFLOW not in file and not file.startswith(_OWN_CODE):
            break
        stack = stacks.parent[stack]
    return stack


def _short_name(node: str) -> str:
    """Return a node's name without the calls and loops around it and the number at its end.

    ``lstm/while/body/_150/lstm/while/add_3`` becomes ``lstm/while/add``.
    """
    return _NUMBER.sub("", bare_name(_BODY.sub("", node)))


def _push(log: EventLog, outside: int, origin: NodeOrigin) -> int:
    """Return the stack that has the frames of an origin below another stack."""
    node = outside
    for line in reversed(origin.frames or origin.stack):
        node = log.stacks.push(node, frame_of(line))
    return node
