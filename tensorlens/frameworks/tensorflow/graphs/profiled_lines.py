"""Charges the allocations of graph functions to the profiled lines that made their nodes.

While code is followed, calls of graph functions with nodes of that code are logged natively, and no
others: each function is read once, at its first call. The events are added up when there are many
of them and when figures are asked for, and then dropped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

import numpy as np

from tensorlens.frameworks.compilers import NodeFigures, TracedFigures
from tensorlens.frameworks.host.allocator import listed
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.counters import used_devices
from tensorlens.frameworks.tensorflow.graphs.functions import Frames, Functions, Stack
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.origins import NodeOrigin
from tensorlens.frameworks.tensorflow.hooks import follow_graph_calls
from tensorlens.interpreter import reentrant_lock

_MAX_LINES = 1 << 16
_MAX_FUNCTIONS = 64
"""Functions whose nodes are kept; beyond that number all are read again."""
_MAX_WAITING = 1 << 15
"""Number of waiting events above which they are added up."""

_WHOLE_MODELS = ("/keras/src/models/functional.py", "/keras/src/models/sequential.py")
"""Keras code that runs the layers of a model without a ``call`` of the user's."""
_DATA_ADAPTERS = "/keras/src/trainers/data_adapters/"
"""Keras code that makes the input pipeline of ``fit``, which runs beside the graphs."""

_Line = tuple[Literal["whole", "forward", "backward"], int]
_WHOLE_GRAPH: _Line = ("whole", 0)
_NOTHING = NodeFigures(0, 0, 0, 0, 0, 0)


class FollowedCode:
    """Figures of the nodes that a function's lines made: a ``TracedCode`` of ``compilers.py``."""

    def __init__(self, code: CodeType, calls: GraphCalls) -> None:
        self._name = code.co_name
        self._filename = code.co_filename
        self._lines = range(code.co_firstlineno, _last_line(code) + 1)
        self._calls = calls
        self._counted: dict[_Line, NodeFigures] = {}
        self.is_incomplete = False
        """Whether a call had more events than the log holds."""
        self.failure: str | None = None
        self._model_lines: set[int] = set()
        """Lines that run all layers of a functional or Sequential model."""
        self.times = 0
        """Number of calls of graphs with its nodes, without those that compute gradients."""
        self.has_plain = self.has_compiled = False
        """Whether it has nodes that run as they are, and nodes that XLA compiled."""
        self.levels: tuple[int, int] | None = None
        """Bytes handed out at the begin of the first call and at the end of the last."""

    def resume(self) -> None:
        """Start counting."""
        self._calls.add(self)

    def pause(self) -> None:
        """Stop counting."""
        self._calls.remove(self)

    def clear(self) -> None:
        """Reset the figures."""
        self._calls.add_up()
        self.times, self.is_incomplete = 0, False
        self.levels = self.failure = None
        self._counted.clear()

    def count(self, line: _Line, call: Any, size: Any) -> None:
        """Add a line's events; ``call`` numbers their calls, ``size`` is negative for frees."""
        starts = np.flatnonzero(np.diff(call, prepend=-1))
        net, level = np.add.reduceat(size, starts), np.cumsum(size)
        level -= np.repeat(np.cumsum(net) - net, np.diff(starts, append=len(size)))
        old = self._counted.get(line, _NOTHING)
        self._counted[line] = NodeFigures(
            hits=old.hits + len(starts),
            allocated=max(old.allocated, int(np.add.reduceat(size.clip(0), starts).max())),
            peak=max(old.peak, int(level.max())),
            net=old.net + int(net.sum()),
            net_max=max(old.net_max, int(net.max())),
            net_first=old.net_first if old.hits else int(net[0]),
        )

    def figures(self) -> TracedFigures | None:
        """Return the figures; None if no graph with nodes of the code was called."""
        if not self.times:
            return None
        self._calls.add_up()
        forward, backward = (
            {lineno: found for (pass_, lineno), found in self._counted.items() if pass_ == name}
            for name in ("forward", "backward")
        )
        return TracedFigures(
            device="cpu",
            calls=self.times,
            lines=forward,
            backward=backward,
            whole=self._counted.get(_WHOLE_GRAPH, _NOTHING),
            growth=self.levels[1] - self.levels[0] if self.levels else 0,
            compiler="XLA" if self.has_compiled and not self.has_plain else None,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self._model_lines:
            lines = ", ".join(f"line {each}" for each in sorted(self._model_lines))
            yield (
                f"{lines}: all layers of a Keras model are in one line, because the model has "
                "no code of its own; tensorlens.record() tells the memory of each layer"
            )
        if used := ", ".join(used_devices()):
            hidden = "TensorFlow does not tell of single nodes there"
            yield f"nothing of {used} is in this table: {hidden}"
        if self.has_compiled and self.has_plain:
            yield "nodes that XLA compiled are in no line: they do not run"
        if self.failure:
            yield f"figures of some calls are missing: {self.failure}"
        if self.is_incomplete:
            yield "only the first two million allocations and frees of a call are in these lines"

    def depth(self, frames: Frames) -> int | None:
        """Return the index of the code's innermost frame; None if it has none."""
        for depth, frame in enumerate(frames):
            if (
                frame.function == self._name
                and frame.lineno in self._lines
                and frame.filename == self._filename
            ):
                return depth
        return None

    def made_any(self, stacks: set[Stack]) -> bool:
        """Tell whether any of the stacks has a frame of the code."""
        return any(self.depth(stack.frames) is not None for stack in stacks)

    def lines_of(self, origin: NodeOrigin | None) -> list[_Line]:
        """Return the code's lines that a node belongs to."""
        if origin is None:
            return []
        found = self._line("forward", origin.frames or origin.stack)
        if origin.phase == "backward" and origin.forward is not None:
            found += self._line("backward", origin.forward.frames or origin.forward.stack)
        return found

    def _line(self, name: Literal["forward", "backward"], frames: Frames) -> list[_Line]:
        depth = self.depth(frames)
        if depth is None or any(_DATA_ADAPTERS in frame.filename for frame in frames[:depth]):
            return []
        lineno = frames[depth].lineno
        if any(frame.filename.endswith(_WHOLE_MODELS) for frame in frames[:depth]):
            self._model_lines.add(lineno)
        return [(name, lineno)]


@dataclass(frozen=True, slots=True)
class _Function:
    """A graph function with nodes of followed code."""

    codes: tuple[FollowedCode, ...]
    is_backward: bool
    """Whether it computes gradients of another call, and so is no call of the code itself."""
    nodes: Nodes


class GraphCalls:
    """Follows calls of graph functions while code is followed."""

    def __init__(self) -> None:
        self._lock = reentrant_lock()
        self._codes: tuple[FollowedCode, ...] = ()
        self._functions: dict[str, _Function | None] = {}
        self._lines_of = functools.lru_cache(_MAX_LINES)(self._find_lines)
        self._unfollow: Callable[[], None] | None = None

    def add(self, code: FollowedCode) -> None:
        """Start following code."""
        with self._lock:
            if code not in self._codes:
                self._follow((*self._codes, code))
            if self._unfollow is None:
                self._unfollow = follow_graph_calls(self._begin)

    def remove(self, code: FollowedCode) -> None:
        """Stop following code."""
        with self._lock:
            if code in self._codes:
                self._follow(tuple(each for each in self._codes if each is not code))
            if not self._codes and self._unfollow is not None:
                self._unfollow()
                self._unfollow = None

    def _follow(self, codes: tuple[FollowedCode, ...]) -> None:
        self.add_up()
        self._codes = codes
        # new functions may run beside the known ones
        self._functions.clear()
        self._lines_of.cache_clear()

    def add_up(self) -> None:
        """Add up the events of finished calls; a failure gets a note."""
        with self._lock:
            try:
                self._add_up()
            except Exception as failure:
                for code in self._codes:
                    code.failure = f"{type(failure).__name__}: {failure}"

    def _add_up(self) -> None:
        events = listed(cpu.install().library, "tl_nodes_take", "qii")
        size, function, node = map(np.asarray, events)
        is_end = size == 0
        if node[is_end].any():
            for code in self._codes:
                code.is_incomplete = True
        call, size = np.cumsum(is_end)[~is_end], size[~is_end]
        name = (function.astype("i8") << 32 | node.astype("u4"))[~is_end]
        nodes, index = np.unique(name, return_inverse=True)
        nodes_of_line: dict[tuple[FollowedCode, _Line], list[int]] = {}
        for number, each in enumerate(nodes.tolist()):
            for key in self._lines_of(each):
                nodes_of_line.setdefault(key, []).append(number)
        for (code, line), numbers in nodes_of_line.items():
            is_of_line = np.zeros(len(nodes), bool)
            is_of_line[numbers] = True
            chosen = np.flatnonzero(is_of_line[index])
            code.count(line, call[chosen], size[chosen])

    def _begin(self, name: str) -> Callable[[], None] | None:
        function = self._function(name)
        if function is None:
            return None
        allocator = cpu.install()
        before = allocator.allocated()
        call, logged = allocator.call(name), allocator.library.tl_nodes_begin()

        def end() -> None:
            allocator.end(call)
            if allocator.end(logged) > _MAX_WAITING:
                self.add_up()
            after = allocator.allocated()
            for code in function.codes:
                code.levels = (code.levels or (before,))[0], after
                code.times += not function.is_backward

        return end

    def _function(self, name: str) -> _Function | None:
        """Return a called function; None if it has no nodes of followed code."""
        with self._lock:
            if name not in self._functions:
                if len([*filter(None, self._functions.values())]) >= _MAX_FUNCTIONS:
                    self.add_up()
                    self._functions.clear()
                self._functions[name] = self._read(name)
            return self._functions[name]

    def _read(self, name: str) -> _Function | None:
        """Read the nodes of a function and of input pipelines, before these are gone."""
        functions = Functions()
        body = functions.body(name)
        if body is None:
            return None
        # the gradients of a call belong to the lines of the call
        plain, compiled = _stacks_of(functions, *filter(None, (name, body.backward_of)))
        codes = []
        for code in self._codes:
            is_plain, is_compiled = code.made_any(plain), code.made_any(compiled)
            code.has_plain |= is_plain
            code.has_compiled |= is_compiled
            if is_plain or is_compiled:
                codes.append(code)
        if not codes:
            return None
        functions.catch_up()
        # layers are not needed
        return _Function(tuple(codes), body.backward_of is not None, Nodes(functions, {}))

    def _find_lines(self, numbers: int) -> Sequence[tuple[FollowedCode, _Line]]:
        """Return the lines that a node belongs to.

        The upper half of ``numbers`` stands for its function's name, the lower half for its own.
        """
        called, node = map(cpu.install().op_name, (numbers >> 32, numbers & 0xFFFFFFFF))
        function = None if called is None else self._function(called)
        if called is None or function is None:
            return []
        codes = function.codes
        if node is None or node == called:
            # XLA's code runs without names; else it is the preparation of a call
            return [(code, _WHOLE_GRAPH) for code in codes if code.has_compiled]
        try:
            origin = function.nodes.find(node, called)
            is_within = function.nodes.within(node, called)
        except Exception:  # this TensorFlow has other internals
            return ()
        # nodes of input pipelines run beside the graph
        whole = [(code, _WHOLE_GRAPH) for code in codes if is_within]
        return whole + [(code, line) for code in codes for line in code.lines_of(origin)]


def _stacks_of(functions: Functions, *names: str) -> tuple[set[Stack], set[Stack]]:
    """Return the stacks of all nodes of functions: of those that run, of those XLA compiled."""
    bodies = [body for name in names for body in functions.called_by(name)]
    compiled = {
        inner.name for body in bodies if body.compiled for inner in functions.called_by(body.name)
    }
    plain: set[Stack] = set()
    inside: set[Stack] = set()
    for body in bodies:
        stacks = inside if body.name in compiled else plain
        stacks.update(map(body.stack, body.nodes))
    return plain, inside


def _last_line(code: CodeType) -> int:
    lines = [line for *_, line in code.co_lines() if line]
    lines += [_last_line(each) for each in code.co_consts if isinstance(each, CodeType)]
    return max(lines, default=code.co_firstlineno)


_calls = GraphCalls()


def follow_code(code: CodeType) -> FollowedCode | None:
    """Return a counter of the graph nodes that a function's lines made.

    None if a fallback counts host memory, which does not know nodes.
    """
    return None if cpu.allocator() is None else FollowedCode(code, _calls)
