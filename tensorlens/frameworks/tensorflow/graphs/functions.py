"""The functions in TensorFlow's runtime, by name: their nodes, and the stack traces of these.

``tf.function``s, the bodies of their loops and branches, the functions of datasets and gradient
functions all have names of their own in the runtime's library. It keeps their definitions
and the stack traces of their nodes, so that no Python object of them is searched or kept alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorflow.python.util import tf_stack

from tensorlens.frameworks.tensorflow.counters import eager_context
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign

Frames = tuple[SourceLine, ...]

_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
_METRICS = ("keras/src/metrics/",)
_LAYER = "keras/src/layers/layer.py"
_BUILD = "build_wrapper"


class Stack:
    """The lines that made a node; many nodes share one stack."""

    def __init__(self, frames: Frames = ()) -> None:
        self.frames = frames
        """All lines but TensorFlow's own, innermost first."""

    @cached_property
    def outermost_first(self) -> Frames:
        """The same lines in reverse order."""
        return self.frames[::-1]

    @cached_property
    def users(self) -> Frames:
        """The lines of the user's code, innermost first; the innermost line if there are none."""
        return (
            tuple(frame for frame in self.frames if not is_foreign(frame.filename))
            or self.frames[:1]
        )

    @cached_property
    def is_optimizer(self) -> bool:
        """Whether an optimizer of Keras made the node."""
        return self._has_file_in(_OPTIMIZERS)

    @cached_property
    def is_metric_or_build(self) -> bool:
        """Whether a metric made the node, or the building of a layer."""
        builds = any(frame.function == _BUILD for frame in self.frames)
        return builds or self._has_file_in(_METRICS)

    @cached_property
    def open_layers(self) -> tuple[int, bool]:
        """Number of layers whose name scopes were open; whether the innermost was being built."""
        depth, is_building, has_scope = 0, False, False
        for frame in self.outermost_first:
            if not frame.filename.replace("\\", "/").endswith(_LAYER):
                continue
            if frame.function == "__call__":
                depth, is_building, has_scope = depth + 1, False, False
            elif frame.function == "_maybe_build":
                has_scope = True  # __call__ has counted the layer
            elif frame.function == _BUILD:
                depth, is_building, has_scope = depth + (not has_scope), True, False
        return depth, is_building

    def _has_file_in(self, folders: tuple[str, ...]) -> bool:
        files = {frame.filename.replace("\\", "/") for frame in self.frames}
        return any(folder in file for file in files for folder in folders)


_TENSORFLOW = str(Path(tf_stack.__file__).parents[1])


def _stacks_of(info: Any) -> dict[str, Stack]:
    """Return the stack of each node of a ``GraphDebugInfo``."""
    files = list(info.files)

    def line(frame: Any) -> SourceLine:
        return SourceLine(files[frame.file_index], frame.line, frame.func)

    frames = {key: line(frame) for key, frame in info.frames_by_id.items()}
    traces = {
        key: _stack(frames[each] for each in reversed(trace.frame_id))
        for key, trace in info.traces_by_id.items()
    }
    found = {
        _node_name(name): traces.get(key, _NO_STACK) for name, key in info.name_to_trace_id.items()
    }
    for name, trace in info.traces.items():  # of older releases
        found.setdefault(_node_name(name), _stack(map(line, reversed(trace.file_line_cols))))
    return found


def _stack(frames: Iterable[SourceLine]) -> Stack:
    return Stack(tuple(frame for frame in frames if not frame.filename.startswith(_TENSORFLOW)))


def _node_name(name: str) -> str:
    """Return a node's name without that of its function, which may follow it."""
    return name.partition("@")[0]


_NO_STACK = Stack()
_GRADIENT_OF = re.compile(r"(.+)_grad_\d+$")


@dataclass(frozen=True, slots=True, eq=False)
class BodyNode:
    """A node of a function."""

    name: str
    op: str
    """Type of its operation."""
    inputs: tuple[str, ...]
    """Names of the nodes and arguments whose values it takes."""
    calls: tuple[tuple[str, str], ...]
    """The functions that it calls: name of the attribute, name of the function."""
    index: int
    """Number of nodes made before it."""


@dataclass(frozen=True, eq=False)
class Body:
    """The nodes of one function."""

    name: str
    nodes: Mapping[str, BodyNode]
    read_stacks: Callable[[], Mapping[str, Stack]]
    """Reads the stacks of all nodes."""
    backward_of: str | None = None
    """Name of the function whose gradients this one computes."""
    compiled: bool = False
    """Whether XLA compiles it."""

    @cached_property
    def stacks(self) -> Mapping[str, Stack]:
        """Stacks by the names of the nodes; read for the first node that is asked for."""
        try:
            return self.read_stacks()
        except Exception:  # the function died, or this TensorFlow keeps its traces otherwise
            return {}

    def stack(self, node: str) -> Stack:
        """Return the stack of a node; an empty one if it was not kept."""
        return self.stacks.get(node, _NO_STACK)

    @cached_property
    def scopes(self) -> Mapping[str, Sequence[BodyNode]]:
        """Nodes by the innermost scope around them."""
        found: dict[str, list[BodyNode]] = {}
        for node in self.nodes.values():
            found.setdefault(node.name.rpartition("/")[0], []).append(node)
        return found


def _backward_of(name: str, attributes: Any) -> str | None:
    if "forward_function_name" in attributes:
        return bytes(attributes["forward_function_name"].s).decode(errors="replace")
    found = _GRADIENT_OF.match(name)
    return found[1] if found else None


def _calls(attributes: Any) -> tuple[tuple[str, str], ...]:
    found = []
    for key, value in attributes.items():
        kind = value.WhichOneof("value")
        if kind == "func":
            found.append((key, value.func.name))
        elif kind == "list" and value.list.func:
            found += [(key, each.name) for each in value.list.func]
    return tuple((key, name) for key, name in found if name)


_EAGER_OPERATIONS = "__wrapped__"
_FUNCTION = re.compile(r"^__(?:inference|forward)_(.*?)_\d+$")
_BACKWARD_FUNCTION = re.compile(r"^__inference___backward_(.*?)_\d+(?:_\d+)?$")


class Functions:
    """The functions of the runtime; those read once stay known after their death."""

    def __init__(self) -> None:
        self._bodies: dict[str, Body] = {}

    def names(self) -> frozenset[str]:
        """Return the names of all functions now, such as ``__inference_train_step_123``."""
        context = eager_context()
        try:
            names = () if context is None else map(_text, context.list_function_names())
        except Exception:  # this TensorFlow has no such list
            names = ()
        return frozenset(name for name in names if not name.startswith(_EAGER_OPERATIONS))

    def body(self, name: str) -> Body | None:
        """Return a function's body; None if the function does not exist any more."""
        if name not in self._bodies and (found := _read_body(name)) is not None:
            self._bodies[name] = found
        return self._bodies.get(name)

    def remember(self, name: str) -> None:
        """Read a function and all that it calls, before it is gone.

        TensorFlow takes about 0.1 ms for the stack of a node.
        """
        for body in self.called_by(name):
            body.stacks  # noqa: B018 - reads them

    def catch_up(self) -> None:
        """Remember the functions of input pipelines made since the last call.

        They are small and die with their pipeline, such as that of ``fit`` when it returns.
        """
        for name in self.names() - self._bodies.keys():
            if is_of_dataset(name):
                self.remember(name)

    def called_by(self, name: str) -> Iterator[Body]:
        """Yield a function's body, then those of all functions that it calls, each once."""
        seen, waiting = {name}, [name]
        while waiting:
            body = self.body(waiting.pop())
            if body is None:
                continue
            yield body
            called = {callee for node in body.nodes.values() for _, callee in node.calls}
            waiting += sorted(called - seen)
            seen |= called

    def known(self) -> frozenset[str]:
        """Return the names of all functions now and of those read before."""
        return self.names() | frozenset(self._bodies)

    def compiled(self, name: str) -> bool:
        """Tell whether XLA compiles a function or something that it calls."""
        return any(body.compiled for body in self.called_by(name))


def plain_name(name: str) -> str:
    """Return a function's Python name: ``train_step`` for ``__inference_train_step_123``."""
    found = _BACKWARD_FUNCTION.match(name) or _FUNCTION.match(name)
    return found[1] if found else name


def is_of_dataset(name: str) -> bool:
    """Tell whether an input pipeline applies a function."""
    return name.startswith("__inference_Dataset_")


def _read_body(name: str) -> Body | None:
    context = eager_context()
    try:
        if context is None or not context.has_function(name):
            return None
        definition = context.get_function_def(name)
    except Exception:  # it died meanwhile
        return None
    nodes = {}
    for index, node in enumerate(definition.node_def):
        inputs = tuple(name.partition(":")[0] for name in node.input if name[0] != "^")
        nodes[node.name] = BodyNode(node.name, node.op, inputs, _calls(node.attr), index)
    attributes = definition.attr
    return Body(
        name,
        nodes,
        lambda: _stacks_of(context.get_graph_debug_info(name)),
        _backward_of(name, attributes),
        "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b,
    )


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def enclosing(name: str) -> Iterator[str]:
    """Yield the scopes around a name, the innermost first."""
    at = name.rfind("/")
    while at > 0:
        yield name[:at]
        at = name.rfind("/", 0, at)
