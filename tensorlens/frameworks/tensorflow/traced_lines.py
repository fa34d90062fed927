"""Charges the allocations of graph functions to the profiled lines that made their nodes.

While code is followed, each call of a graph function that has nodes of it is logged natively, and
nothing else is: a function is looked at once, when it is called first. Of the events only sums
remain, made where there are many of them, where nodes are new, and where somebody asks.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

import numpy as np

from tensorlens.frameworks.compilers import NodeFigures, TracedFigures
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.counters import used_devices
from tensorlens.frameworks.tensorflow.graphs.functions import Functions
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.origins import NodeOrigin
from tensorlens.frameworks.tensorflow.graphs.stacks import Frames, Stack
from tensorlens.frameworks.tensorflow.hooks import follow_calls
from tensorlens.interpreter import reentrant_lock
from tensorlens.native.build import declare

_MAX_LINES = 1 << 16
_MAX_FUNCTIONS = 64
"""Functions with nodes of followed code whose nodes are kept; after that all are read again."""
_MAX_WAITING = 1 << 15
"""Events that wait to be added up."""
_EVENT = np.dtype([("address", "u8"), ("size", "i8"), ("function", "i4"), ("node", "i4")])
"""``NodeEvent`` of ``node_log.hpp``."""


_WHOLE_MODELS = ("/keras/src/models/functional.py", "/keras/src/models/sequential.py")
"""Code of Keras that runs the layers of a model which has no ``call`` of the user's."""
_INPUTS = "/keras/src/trainers/data_adapters/"
"""Code of Keras that makes the input pipeline of ``fit``, which runs beside the graphs."""

_Line = tuple[Literal["whole", "forward", "backward"], int]
_WHOLE: _Line = ("whole", 0)
_NOTHING = NodeFigures(0, 0, 0, 0, 0, 0)


class FollowedCode:
    """See :class:`tensorlens.frameworks.compilers.TracedCode`."""

    def __init__(self, code: CodeType, calls: GraphCalls) -> None:
        self._name = code.co_name
        self._filename = code.co_filename
        self._lines = range(code.co_firstlineno, _last_line(code) + 1)
        self._calls = calls
        self._counted: dict[_Line, NodeFigures] = {}
        self.is_incomplete = False
        """Whether a call had more events than are kept."""
        self.failure: str | None = None
        self._of_models: set[int] = set()
        """Lines that run all layers of a functional or Sequential model."""
        self.times = 0
        """How often graphs with its nodes were called."""
        self.plain = self.compiled = False
        """Whether there were nodes of it that run as they are, and such that XLA compiled."""
        self.levels: tuple[int, int] | None = None
        """Bytes handed out when the first call began and when the last one ended."""

    def resume(self) -> None:
        """Count from now on."""
        self._calls.add(self)

    def pause(self) -> None:
        """Count no more."""
        self._calls.remove(self)

    def clear(self) -> None:
        """Forget what was counted."""
        self._calls.add_up()
        self.times, self.is_incomplete = 0, False
        self.levels = self.failure = None
        self._counted.clear()

    def count(self, line: _Line, call: Any, size: Any) -> None:
        """Add the events of a line's nodes: the number of the call, and bytes, less if freed."""
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
        """Return what was counted; None where no graph with such nodes was called."""
        if not self.times:
            return None
        self._calls.add_up()
        forward, backward = (
            {lineno: found for (kind, lineno), found in self._counted.items() if kind == way}
            for way in ("forward", "backward")
        )
        return TracedFigures(
            device="cpu",
            calls=self.times,
            lines=forward,
            backward=backward,
            whole=self._counted.get(_WHOLE, _NOTHING),
            growth=self.levels[1] - self.levels[0] if self.levels else 0,
            compiler="XLA" if self.compiled and not self.plain else None,
            notes=tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self._of_models:
            lines = ", ".join(f"line {each}" for each in sorted(self._of_models))
            yield (
                f"{lines}: all layers of a Keras model are in one line, because the model has "
                "no code of its own; tensorlens.record() tells the memory of each layer"
            )
        if used := ", ".join(used_devices()):
            hidden = "TensorFlow does not tell of single nodes there"
            yield f"of {used} nothing is in this table: {hidden}"
        if self.compiled and self.plain:
            yield "what XLA compiled is in no line: its nodes do not run"
        if self.failure:
            yield f"figures of some calls are missing: {self.failure}"
        if self.is_incomplete:
            yield "of a call, what comes after two million allocations and frees is in no line"

    def depth(self, frames: Frames) -> int | None:
        """Return which of the frames, innermost first, is the function's; None if none is."""
        for depth, frame in enumerate(frames):
            if (
                frame.function == self._name
                and frame.lineno in self._lines
                and frame.filename == self._filename
            ):
                return depth
        return None

    def lines_of(self, origin: NodeOrigin | None) -> list[_Line]:
        """Return the lines that a node is of."""
        if origin is None:
            return []
        found = self._line("forward", origin.frames or origin.stack)
        if origin.phase == "backward" and origin.forward is not None:
            found += self._line("backward", origin.forward.frames or origin.forward.stack)
        return found

    def _line(self, way: Literal["forward", "backward"], frames: Frames) -> list[_Line]:
        depth = self.depth(frames)
        if depth is None or any(_INPUTS in frame.filename for frame in frames[:depth]):
            return []
        lineno = frames[depth].lineno
        if any(frame.filename.endswith(_WHOLE_MODELS) for frame in frames[:depth]):
            self._of_models.add(lineno)
        return [(way, lineno)]


@dataclass(frozen=True, slots=True)
class _Function:
    """A graph function that has nodes of followed code."""

    codes: tuple[FollowedCode, ...]
    is_backward: bool
    """Whether it computes gradients of another call, and is no call of the code by itself."""
    nodes: Nodes


class GraphCalls:
    """Follows the calls of graph functions while there is code to follow."""

    def __init__(self, allocator: cpu.TensorflowAllocator) -> None:
        self._allocator, self._library = allocator, allocator.library
        number, address = ctypes.c_int64, ctypes.c_void_p
        declare(
            self._library,
            {
                "tl_nodes_begin": (ctypes.py_object, ()),
                "tl_nodes_take": (number, (address, number)),
                "tl_nodes_dropped": (ctypes.c_int, ()),
            },
        )
        self._lock = reentrant_lock()
        self._codes: tuple[FollowedCode, ...] = ()
        self._functions: dict[str, _Function | None] = {}
        self._unfollow: Callable[[], None] | None = None
        self._follow(())

    def add(self, code: FollowedCode) -> None:
        """Follow the graphs with nodes of this code as well."""
        with self._lock:
            if code not in self._codes:
                self._follow((*self._codes, code))
            if self._unfollow is None:
                self._unfollow = follow_calls(self._begin)

    def remove(self, code: FollowedCode) -> None:
        """Undo :meth:`add`."""
        with self._lock:
            if code in self._codes:
                self._follow(tuple(each for each in self._codes if each is not code))
            if not self._codes and self._unfollow is not None:
                self._unfollow()
                self._unfollow = None

    def _follow(self, codes: tuple[FollowedCode, ...]) -> None:
        self.add_up()
        self._codes = codes
        self._lines_of = functools.lru_cache(_MAX_LINES)(self._find_lines)
        # functions may have come to run beside those that are known
        self._functions.clear()

    def add_up(self) -> None:
        """Add up the events of all calls that are over; a failure is told in the notes."""
        with self._lock:
            try:
                self._add_up()
                if self._library.tl_nodes_dropped():
                    for code in self._codes:
                        code.is_incomplete = True
            except Exception as failure:
                for code in self._codes:
                    code.failure = f"{type(failure).__name__}: {failure}"

    def _add_up(self) -> None:
        call, name, size = _sizes(self._events())
        names, place = np.unique(name, return_inverse=True)
        members: dict[tuple[FollowedCode, _Line], list[int]] = {}
        for number, each in enumerate(names.tolist()):
            for place_of in self._lines_of(each):
                members.setdefault(place_of, []).append(number)
        for (code, line), numbers in members.items():
            is_of_line = np.zeros(len(names), bool)
            is_of_line[numbers] = True
            chosen = np.flatnonzero(is_of_line[place])
            code.count(line, call[chosen], size[chosen])

    def _events(self) -> Any:
        events = np.empty(0, _EVENT)
        while (count := self._library.tl_nodes_take(events.ctypes.data, len(events))) > len(events):
            events = np.empty(count, _EVENT)
        return events[:count]

    def _begin(self, name: str) -> Callable[[], None] | None:
        function = self._function(name)
        if function is None:
            return None
        before = self._allocator.allocated()
        call, logged = self._allocator.call(name), self._library.tl_nodes_begin()

        def end() -> None:
            self._allocator.end(call)
            if self._allocator.end(logged) > _MAX_WAITING:
                self.add_up()
            after = self._allocator.allocated()
            for code in function.codes:
                code.levels = (code.levels or (before,))[0], after
                code.times += not function.is_backward

        return end

    def _function(self, name: str) -> _Function | None:
        """Return a function that is called; None if it has no nodes of followed code."""
        with self._lock:
            if name not in self._functions:
                found = self._read(name)
                if found and len([*filter(None, self._functions.values())]) >= _MAX_FUNCTIONS:
                    self.add_up()
                    self._functions.clear()
                self._functions[name] = found
            return self._functions[name]

    def _read(self, name: str) -> _Function | None:
        """Read a function's nodes, and those of pipelines beside it: both may be gone later."""
        # nobody asks here which layer a node is in
        nodes = Nodes(Functions(), {})
        functions = nodes.functions
        body = functions.body(name)
        if body is None:
            return None
        # the gradients of a call are of the lines that it runs
        plain, compiled = _stacks_of(functions, *filter(None, (name, body.backward_of)))
        codes = []
        for code in self._codes:
            here = any(code.depth(stack.frames) is not None for stack in plain)
            inside = any(code.depth(stack.frames) is not None for stack in compiled)
            code.plain |= here
            code.compiled |= inside
            if here or inside:
                codes.append(code)
        if not codes:
            return None
        functions.catch_up()
        return _Function(tuple(codes), body.backward_of is not None, nodes)

    def _find_lines(self, name: int) -> Sequence[tuple[FollowedCode, _Line]]:
        """Return the lines that a node is of, by the numbers of its function's name and its own."""
        called, node = map(self._allocator.op_name, (name >> 32, name & 0xFFFFFFFF))
        function = None if called is None else self._function(called)
        codes = self._codes if function is None else function.codes
        if called is None or function is None or node is None or node == called:
            # what runs without a name is what XLA compiled; else the preparation of a call
            return [(code, _WHOLE) for code in codes if function is not None and code.compiled]
        try:
            origin = function.nodes.find(node, called)
            is_within = function.nodes.within(node, called)
        except Exception:  # of a TensorFlow with other internals: it is in no line
            return ()
        # input pipelines run beside it
        found = [(code, _WHOLE) for code in codes if is_within]
        return found + [(code, line) for code in codes for line in code.lines_of(origin)]


def _sizes(events: Any) -> tuple[Any, Any, Any]:
    """Return call, function with node, and bytes of each event; less than none where freed."""
    call = np.cumsum(events["size"] < 0)
    # what is freed was allocated by the event before it at the same address, if in the same call
    order = np.argsort(events["address"], kind="stable")
    address, size, calls = events["address"][order], events["size"][order], call[order]
    name = events["function"][order].astype("i8") << 32 | events["node"][order].astype("u4")
    is_pair = (size[1:] == 0) & (size[:-1] > 0)
    is_pair &= (address[1:] == address[:-1]) & (calls[1:] == calls[:-1])
    freed = np.flatnonzero(is_pair) + 1
    size[freed], name[freed] = -size[freed - 1], name[freed - 1]
    kept = (size != 0) & (address != 0)
    order, size, name, calls = order[kept], size[kept], name[kept], calls[kept]
    back = np.argsort(order)
    return calls[back], name[back], size[back]


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


_lock = reentrant_lock()
_calls: GraphCalls | None = None


def follow_code(code: CodeType) -> FollowedCode | None:
    """Return what follows the graphs with nodes of a function's lines.

    None where single nodes cannot be told: host memory is counted by a fallback.
    """
    global _calls
    allocator = cpu.allocator()
    if allocator is None:
        return None
    with _lock:
        if _calls is None:
            _calls = GraphCalls(allocator)
    return FollowedCode(code, _calls)
