"""The functions that TensorFlow's runtime knows, by name: their nodes, and the frames of each.

``tf.function``s, the bodies of their loops and branches, the functions of datasets and gradient
functions all are in the runtime's library under names of their own. It keeps their definitions
and the stack traces of their nodes, so that no Python object of them is looked for or kept alive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorflow.python.util import tf_stack

from tensorlens.frameworks.tensorflow.counters import runtime
from tensorlens.records.tensors import SourceLine

Frames = tuple[SourceLine, ...]
_OWN_CODE = str(Path(tf_stack.__file__).parents[1])


def _from_debug_info(info: Any) -> dict[str, Frames]:
    """Return the frames of each node of a ``GraphDebugInfo``, innermost first."""
    files = list(info.files)

    def line(frame: Any) -> SourceLine:
        return SourceLine(files[frame.file_index], frame.line, frame.func)

    frames = {key: line(frame) for key, frame in info.frames_by_id.items()}
    stacks = {
        key: _outside(frames[each] for each in reversed(stack.frame_id))
        for key, stack in info.traces_by_id.items()
    }
    found = {_node(name): stacks.get(key, ()) for name, key in info.name_to_trace_id.items()}
    for name, stack in info.traces.items():  # as older ones have it
        found.setdefault(_node(name), _outside(map(line, reversed(stack.file_line_cols))))
    return found


def _outside(frames: Iterable[SourceLine]) -> Frames:
    return tuple(frame for frame in frames if not frame.filename.startswith(_OWN_CODE))


def _node(name: str) -> str:
    """Return a node's name without that of its function, which may be behind it."""
    return name.partition("@")[0]


_GRADIENT_OF = re.compile(r"(.+)_grad_\d+$")


@dataclass(frozen=True, slots=True, eq=False)
class BodyNode:
    """One node of a body."""

    name: str
    op: str
    """The type of its operation."""
    inputs: tuple[str, ...]
    """The names of the nodes and arguments whose values it takes."""
    calls: tuple[tuple[str, str], ...]
    """The functions that it calls: the name of the attribute, and the function's."""
    place: int
    """How many nodes were made before it."""


@dataclass(frozen=True, eq=False)
class Body:
    """One function's nodes."""

    name: str
    nodes: Mapping[str, BodyNode]
    read: Callable[[], Mapping[str, Frames]]
    """Gives the frames that made each node, innermost first."""
    backward_of: str | None = None
    """Of a function that computes gradients: the function whose gradients these are."""
    compiled: bool = False
    """Whether XLA compiles it."""

    @cached_property
    def all_frames(self) -> Mapping[str, Frames]:
        """The frames of all nodes; they are read when the first node is asked for."""
        try:
            return self.read()
        except Exception:  # the function died, or this TensorFlow keeps its traces otherwise
            return {}

    def frames(self, node: str) -> Frames:
        """Return the frames that made a node, innermost first; none if they were not kept."""
        return self.all_frames.get(node, ())

    @cached_property
    def scopes(self) -> Mapping[str, Sequence[BodyNode]]:
        """Scope to the nodes right in it."""
        found: dict[str, list[BodyNode]] = {}
        for node in self.nodes.values():
            found.setdefault(node.name.rpartition("/")[0], []).append(node)
        return found


def _backward_of(name: str, attributes: Any) -> str | None:
    if "forward_function_name" in attributes:
        return bytes(attributes["forward_function_name"].s).decode(errors="replace")
    found = _GRADIENT_OF.match(name)
    return found[1] if found else None


def _inputs(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.partition(":")[0] for name in names if not name.startswith("^"))


def _calls(attributes: Any) -> tuple[tuple[str, str], ...]:
    found = []
    for key, value in attributes.items():
        kind = value.WhichOneof("value")
        if kind == "func":
            found.append((key, value.func.name))
        elif kind == "list" and value.list.func:
            found += [(key, each.name) for each in value.list.func]
    return tuple((key, name) for key, name in found if name)


_OF_EAGER_OPS = "__wrapped__"
_AROUND = re.compile(r"^__(?:inference|forward)_(.*?)_\d+$")
_BACKWARD = re.compile(r"^__inference___backward_(.*?)_\d+(?:_\d+)?$")


class Functions:
    """The functions of the runtime; what was read of one stays known when it is gone."""

    def __init__(self) -> None:
        self._bodies: dict[str, Body] = {}

    def names(self) -> frozenset[str]:
        """Return the names of those in the runtime now, as ``__inference_train_step_123``."""
        made = runtime()
        if made is None:
            return frozenset()
        try:
            names = made.list_function_names()
        except Exception:  # of a TensorFlow that cannot say
            return frozenset()
        return frozenset(_text(name) for name in names if not _text(name).startswith(_OF_EAGER_OPS))

    def body(self, name: str) -> Body | None:
        """Return a function's body; None if there is no such function any more."""
        if name not in self._bodies and (found := _read(name)) is not None:
            self._bodies[name] = found
        return self._bodies.get(name)

    def remember(self, name: str) -> None:
        """Read a function and all it calls now, as it may be gone later.

        TensorFlow needs about a tenth of a millisecond a node to tell its frames.
        """
        for body in self.called_by(name):
            body.all_frames  # noqa: B018 - they are read

    def catch_up(self) -> None:
        """Remember the functions of input pipelines made since the last call of this.

        They are small, and gone with their pipeline: those of ``fit`` when it returns.
        """
        for name in self.names() - self._bodies.keys():
            if is_of_dataset(name):
                self.remember(name)

    def called_by(self, name: str) -> Iterator[Body]:
        """Give a function's body, then those of what it calls, directly or not, each once."""
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
        """Return the names of those in the runtime and of those read before."""
        return self.names() | frozenset(self._bodies)

    def compiled(self, name: str) -> bool:
        """Tell whether XLA compiles a function or something that it calls."""
        return any(body.compiled for body in self.called_by(name))


def plain_name(name: str) -> str:
    """Return the name of the Python function: of ``__inference_train_step_123`` ``train_step``."""
    found = _BACKWARD.match(name) or _AROUND.match(name)
    return found[1] if found else name


def is_of_dataset(name: str) -> bool:
    """Tell whether a function is one that an input pipeline applies."""
    return name.startswith("__inference_Dataset_")


def _read(name: str) -> Body | None:
    made = runtime()
    try:
        if made is None or not made.has_function(name):
            return None
        definition = made.get_function_def(name)
    except Exception:  # it died meanwhile
        return None
    nodes = {
        node.name: BodyNode(node.name, node.op, _inputs(node.input), _calls(node.attr), place)
        for place, node in enumerate(definition.node_def)
    }
    attributes = definition.attr
    return Body(
        name,
        nodes,
        lambda: _from_debug_info(made.get_graph_debug_info(name)),
        _backward_of(name, attributes),
        "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b,
    )


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


_BEFORE = re.compile(
    r"^(?:ConstantFoldingCtrl|ConstantFolding|Func|LayoutOptimizer|DependencyOptimizer|"
    r"LoopOptimizer|Remapper|Fusion|AutoMixedPrecision|"
    r"ArithmeticOptimizer(?:/[A-Za-z]+(?=_))?)[/_]"
)
_BEHIND = re.compile(
    r"(?:"
    r"/?_\d+__cf__\d+|__cf__\d+"  # folded by the runtime
    r"|/(?:input|output|input_control_node|output_control_node)/_\d+"  # ends of a call inlined
    r"|/(?:enter|merge|switch|next|exit|Enter|Merge|Switch|NextIteration|Exit|LoopCond"
    r"|loop_cond|pivot_[tf]|pred|then|else|body|cond)/_\d+"  # parts of a loop or branch lowered
    r"|-folded(?:-\d+)?|-const_axis|_recip|_const_axis|_bcast|_matmul_scale|_bn_\w+"
    r"|-\d+(?:-\d+)?-[A-Za-z0-9]+-(?:LayoutOptimizer|AutoMixedPrecision)"
    r"|-(?:LayoutOptimizer|AutoMixedPrecision)|-[A-Za-z]+-\d+-[A-Za-z]+"
    r"|_arithmetic_optimizer|_LayoutOptimizer"
    r"|/_\d+|:\d+"
    r")$"
)
_WITHIN = re.compile(r"(?<=/)ArithmeticOptimizer/[A-Za-z]+_")  # behind the scope it works in
_BRANCH = re.compile(r"^(body|cond|then|else|branch_?\d*|branches)/_\d+/(.+)$")
_ATTRIBUTES = {"then": "then_branch", "else": "else_branch", "branch": "branches"}
_CALLS = re.compile(r"^(?:(?:Stateful)?PartitionedCall(?:_\d+)?/)+")
_COMPILED = re.compile(r"(?:^|/)cluster_\d+_\d+(?:/|$)|(?:^|/)xla_(?:run|compile)(?:_\d+)?$")


def plain_names(name: str) -> Iterator[str]:
    """Give a node's name, then what it is with more and more of the decoration taken off."""
    yield name
    while True:
        shorter = _BEHIND.sub("", name) or name
        if shorter == name:
            shorter = _WITHIN.sub("", _BEFORE.sub("", name)) or name
        if shorter == name:
            return
        name = shorter
        yield name


def bare_name(name: str) -> str:
    """Return a node's name without the calls inlined around it and what rewriting it added."""
    *_, plain = plain_names(name)
    return _CALLS.sub("", plain)


def inlined(name: str) -> Iterator[tuple[str, str | None, str]]:
    """Give the ways in which a name can be of a node inlined, the shortest caller's name first.

    Each is the calling node's name, the attribute that has the function called, or None where the
    name does not say, and the name of the node in that function.
    """
    at = name.find("/")
    while at >= 0:
        caller, rest = name[:at], name[at + 1 :]
        branch = _BRANCH.match(rest)
        if branch:
            key = branch[1].rstrip("_0123456789")
            yield caller, _ATTRIBUTES.get(key, key), branch[2]
        yield caller, None, rest
        at = name.find("/", at + 1)


def is_compiled(name: str) -> bool:
    """Tell whether a node is one that runs what XLA made of a part of a graph."""
    return _COMPILED.search(name) is not None


def enclosing(name: str) -> Iterator[str]:
    """Give the scopes that a name is in, the innermost first."""
    at = name.rfind("/")
    while at > 0:
        yield name[:at]
        at = name.rfind("/", 0, at)
