"""Stacks as torch writes them: Python frames, and C++ frames that tell operator and node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorlens.records.events import Context, Frame, Stacks

_INSTALLED = re.compile(
    r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+t?)[/\\]"
    r"|[/\\]Python3\d+[/\\]Lib[/\\]"
    # a checkout of torch itself
    r"|[/\\]torch[/\\](?:nn|optim|autograd|utils|cuda|distributed|fx|jit|amp|_\w+)[/\\]"
    r"|[/\\]torch[/\\](?:functional|_\w+)\.py$",
    re.IGNORECASE,
)
_OPERATOR = re.compile(r"\bat::_ops::(\w{1,200})::(?:call|redispatch)\b")
# the overload is a part of the name there: add_Tensor, sum_dim_IntList, empty_memory_format
_OVERLOAD = re.compile(r"(?:_(?:dim|dtype|memory_format|start))?(?:_[A-Z]\w*)?$")
_NODE = re.compile(r"\btorch::autograd::(?:generated::)?(?:\w+::)?(\w+)::apply\(")
_ENGINE = "torch::autograd::Engine::evaluate_function("


class StackReader:
    """Puts the stacks of a snapshot into a log's; each list of frames is looked at once.

    The snapshot must outlive the reader, which knows its parts by their identity.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._frames: dict[int, Frame] = {}
        self._nodes: dict[tuple[int, int], int] = {}
        self._native: dict[int, Context | None] = {}
        self._known: dict[int, tuple[int, Context | None]] = {}

    def stack(self, frames: Any) -> tuple[int, Context | None]:
        """Return the node of a list of frames, innermost first, and what its C++ frames tell."""
        if not frames:
            return -1, None
        known = self._known.get(id(frames))
        if known is None:
            known = self._known[id(frames)] = self._read(frames)
        return known

    def _read(self, frames: list[Any]) -> tuple[int, Context | None]:
        stack = -1
        for raw in reversed(frames):
            step = stack, id(raw)
            if step not in self._nodes:
                self._nodes[step] = self._push(stack, raw)
            stack = self._nodes[step]
        if stack not in self._native:
            self._native[stack] = _native_context(self._stacks.of(stack))
        return stack, self._native[stack]

    def _push(self, stack: int, raw: Any) -> int:
        known = self._frames.get(id(raw))
        if known is None:
            lineno = raw["line"]
            if not 0 <= lineno < 2**31:
                # torch writes such lines for some generated code: the frame has none
                lineno = 0
            known = self._frames[id(raw)] = frame_of(raw["filename"], lineno, raw["name"])
        return self._stacks.push(stack, known)


def frame_of(filename: str, lineno: int, function: str) -> Frame:
    """Return a frame, a user's own as its path tells: the machine is not here."""
    frame = Frame(filename, lineno, function)
    own = not filename.startswith("<frozen") and not _INSTALLED.search(filename)
    return replace(frame, user=frame.is_python and own)


def _native_context(stack: Sequence[Frame]) -> Context | None:
    """Return what the C++ frames of a stack tell."""
    native = [frame.function for frame in reversed(stack) if not frame.is_python]
    found = [match[1] for name in native if (match := _OPERATOR.search(name))]
    operators = [_OVERLOAD.sub("", name, count=1) or name for name in found]
    nodes = [match[1] for name in native if (match := _NODE.search(name))]
    backward = any(name.startswith(_ENGINE) for name in native)
    if not operators and not backward:
        return None
    inner = f"aten::{operators[-1]}" if operators else None
    outer = f"aten::{operators[0]}" if operators else None
    return Context(
        op=inner,
        outer=None if outer == inner else outer,
        node=nodes[-1] if backward and nodes else None,
        phase="backward" if backward else None,
    )
