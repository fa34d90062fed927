"""Charges the allocations of graph functions to the profiled lines that made their nodes.

While code is followed, each call of a graph function that has nodes of it is logged natively, and
nothing else is: a function is looked at once, when it is called first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Literal

from tensorlens.frameworks.compilers import NodeFigures, TracedFigures
from tensorlens.frameworks.tensorflow.graphs.calls import follow_calls
from tensorlens.frameworks.tensorflow.graphs.functions import Frames, Functions
from tensorlens.frameworks.tensorflow.graphs.nodes import NodeOrigin, Nodes
from tensorlens.frameworks.tensorflow.native import NodeLog, TensorflowAllocator
from tensorlens.interpreter import reentrant_lock

_MOST_KNOWN = 4096
_MOST_READ = 16
"""Functions whose nodes are kept at hand; the others' are read again if they are wanted."""


@functools.lru_cache(_MOST_READ)
def _nodes_of(function: str) -> Nodes:
    # which layer a node is in is not asked
    return Nodes(Functions(), {})


_WHOLE_MODELS = ("/keras/src/models/functional.py", "/keras/src/models/sequential.py")
"""Code of Keras that runs the layers of a model which has no ``call`` of the user's."""

_INPUTS = "/keras/src/trainers/data_adapters/"
"""Code of Keras that makes the input pipeline of ``fit``, which runs beside the graphs."""

_Way = Literal["forward", "backward"]


class FollowedCode:
    """See :class:`tensorlens.frameworks.compilers.TracedCode`."""

    def __init__(self, code: CodeType, calls: GraphCalls) -> None:
        self._name = code.co_name
        self._filename = code.co_filename
        self._lines = range(code.co_firstlineno, _last_line(code) + 1)
        self._calls = calls
        self._groups: dict[tuple[_Way, int], int] = {}
        self._whole = calls.log.group()
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
        self.times = 0
        self.plain = self.compiled = False
        self.levels = None
        self._of_models.clear()
        for group in (self._whole, *self._groups.values()):
            self._calls.log.clear(group)

    def figures(self) -> TracedFigures | None:
        """Return what was counted; None where no graph with such nodes was called."""
        if not self.times:
            return None
        found: dict[_Way, dict[int, NodeFigures]] = {"forward": {}, "backward": {}}
        for (way, lineno), group in self._groups.items():
            figures = self._calls.log.figures(group)
            if figures.hits:
                found[way][lineno] = figures
        return TracedFigures(
            device="cpu",
            calls=self.times,
            lines=found["forward"],
            backward=found["backward"],
            whole=self._calls.log.figures(self._whole),
            growth=self.levels[1] - self.levels[0] if self.levels else 0,
            compiler="XLA" if self.compiled and not self.plain else None,
            notes=(*self._notes_of_models(), *_notes(self._calls.log.lost())),
        )

    def _notes_of_models(self) -> Iterator[str]:
        if self._of_models:
            lines = ", ".join(f"line {each}" for each in sorted(self._of_models))
            yield (
                f"{lines}: all layers of a Keras model are in one line, because the model has "
                "no code of its own; tensorlens.record() tells the memory of each layer"
            )

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

    def groups_of(self, origin: NodeOrigin | None) -> list[int]:
        """Return the groups that a node is in."""
        groups = [self._whole]
        if origin is not None:
            groups += self._group("forward", origin.frames or origin.stack)
            if origin.phase == "backward" and origin.forward is not None:
                groups += self._group("backward", origin.forward.frames or origin.forward.stack)
        return groups

    def _group(self, way: _Way, frames: Frames) -> list[int]:
        depth = self.depth(frames)
        if depth is None or any(_INPUTS in frame.filename for frame in frames[:depth]):
            return []
        lineno = frames[depth].lineno
        if any(frame.filename.endswith(_WHOLE_MODELS) for frame in frames[:depth]):
            self._of_models.add(lineno)
        key = way, lineno
        if key not in self._groups:
            self._groups[key] = self._calls.log.group()
        return [self._groups[key]]


@dataclass(frozen=True, slots=True)
class _Known:
    """A graph function that has nodes of followed code."""

    codes: tuple[FollowedCode, ...]
    is_backward: bool
    """It computes gradients of another call, and is no call of the code by itself."""
    compiled_at: Frames
    """The frames where it calls what XLA compiled, if they are known and all the same."""


class GraphCalls:
    """Follows the calls of graph functions while there is code to follow."""

    def __init__(self, allocator: TensorflowAllocator) -> None:
        self._allocator = allocator
        self.log = NodeLog(allocator)
        self._lock = reentrant_lock()
        self._codes: tuple[FollowedCode, ...] = ()
        self._known: dict[str, _Known | None] = {}
        self._unfollow: Callable[[], None] | None = None

    def add(self, code: FollowedCode) -> None:
        """Follow the graphs with nodes of this code as well."""
        with self._lock:
            if code not in self._codes:
                self._codes = (*self._codes, code)
                self._look_anew()
            if self._unfollow is None:
                self._unfollow = follow_calls(self._begin)

    def remove(self, code: FollowedCode) -> None:
        """Undo :meth:`add`."""
        with self._lock:
            if code in self._codes:
                self._codes = tuple(each for each in self._codes if each is not code)
                self._look_anew()
            if not self._codes and self._unfollow is not None:
                self._unfollow()
                self._unfollow = None

    def _look_anew(self) -> None:
        self._known = {}
        # functions may have come to run beside those that are known
        _nodes_of.cache_clear()
        self.log.forget_places()

    def _begin(self, name: str) -> Callable[[], None] | None:
        known = self._known.get(name)
        if known is None and name not in self._known:
            known = self._look(name)
        if known is None:
            return None
        before = self._allocator.allocated()
        call, logged = self._allocator.call(name), self.log.call()

        def end() -> None:
            self._allocator.end(call)
            if self._allocator.end(logged):
                with self._lock:
                    self._place_fresh()
                    self.log.settle()
            after = self._allocator.allocated()
            for code in known.codes:
                code.levels = (code.levels or (before,))[0], after
                code.times += not known.is_backward

        return end

    def _look(self, name: str) -> _Known | None:
        with self._lock:
            found = self._find_codes(name)
            if len(self._known) >= _MOST_KNOWN:
                self._known = {}
            self._known[name] = found
            return found

    def _find_codes(self, name: str) -> _Known | None:
        functions = _nodes_of(name).functions
        body = functions.body(name)
        if body is None:
            return None
        # the gradients of a call are of the lines that it runs
        plain, compiled = _frames_of(functions, *filter(None, (name, body.backward_of)))
        codes = []
        for code in self._codes:
            here = any(code.depth(frames) is not None for frames in plain)
            inside = any(code.depth(frames) is not None for frames in compiled)
            code.plain |= here
            code.compiled |= inside
            if here or inside:
                codes.append(code)
        if not codes:
            return None
        return _Known(tuple(codes), body.backward_of is not None, _where_compiled(functions, name))

    def _place_fresh(self) -> None:
        for key, function, node in self.log.fresh():
            known = self._known.get(function or "")
            codes = known.codes if known is not None else self._codes
            try:
                groups = self._groups(codes, function, node, known)
            except Exception:  # of a TensorFlow with other internals: it is in no line
                groups = []
            self.log.place(key, groups)

    def _groups(
        self,
        codes: Sequence[FollowedCode],
        function: str | None,
        node: str | None,
        known: _Known | None,
    ) -> list[int]:
        origin, named, within = None, False, False
        if function is not None and node is not None and node != function:
            named = True
            nodes = _nodes_of(function)
            origin = nodes.find(node, function)
            within = nodes.within(node, function)
        elif known is not None and known.compiled_at:
            # what runs without a name is what XLA compiled
            origin = NodeOrigin(frames=known.compiled_at)
        groups = []
        for code in codes:
            whole, *lines = code.groups_of(origin)
            # what runs without a name is what XLA compiled; else the preparation of a call, and
            # input pipelines beside it
            is_own = within if named else code.compiled
            groups += [whole, *lines] if is_own and known is not None else lines
        return groups


def _frames_of(functions: Functions, *names: str) -> tuple[set[Frames], set[Frames]]:
    """Return the frames of all nodes functions run: of those as they are, of those compiled."""
    bodies = [body for name in names for body in functions.called_by(name)]
    compiled = {
        inner.name for body in bodies if body.compiled for inner in functions.called_by(body.name)
    }
    plain: set[Frames] = set()
    inside: set[Frames] = set()
    for body in bodies:
        frames = inside if body.name in compiled else plain
        frames.update(body.frames(node) for node in body.nodes)
    return plain, inside


def _where_compiled(functions: Functions, name: str) -> Frames:
    found = {
        body.frames(node.name)
        for body in functions.called_by(name)
        if not body.compiled
        for node in body.nodes.values()
        for _, called in node.calls
        if (inner := functions.body(called)) is not None and inner.compiled
    }
    return found.pop() if len(found) == 1 else ()


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
    from tensorlens.frameworks.tensorflow import cpu

    global _calls
    allocator = cpu.allocator()
    if allocator is None:
        return None
    with _lock:
        if _calls is None:
            _calls = GraphCalls(allocator)
    return FollowedCode(code, _calls)


def _notes(lost: int) -> Iterator[str]:
    from tensorlens.frameworks.tensorflow.counters import used_devices

    used = ", ".join(used_devices())
    if used:
        yield f"of {used} nothing is in this table: TensorFlow does not tell of single nodes there"
    if lost:
        yield f"{lost} allocations of graphs are in no line: too many in the first call"
