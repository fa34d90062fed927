"""A recording of TensorFlow's CPU allocator, with the lines, layers and phases of graph nodes."""

from __future__ import annotations

import functools
import inspect
import os
import re
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tensorlens.frameworks.base import CensusRoot, Recorder, RecordOptions
from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.host.allocator_log import NativeRecorder
from tensorlens.frameworks.host.recorder import (
    Amendment,
    FrameworkHooks,
    HostRecorder,
    ModulePath,
    Moment,
)
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.names import layer_path
from tensorlens.frameworks.registry import when_imported
from tensorlens.frameworks.tensorflow import cpu
from tensorlens.frameworks.tensorflow.cpu import watch
from tensorlens.frameworks.tensorflow.graphs.node_names import bare_name
from tensorlens.frameworks.tensorflow.graphs.nodes import Nodes
from tensorlens.frameworks.tensorflow.graphs.origins import NodeOrigin, frame_of
from tensorlens.frameworks.tensorflow.graphs.runtime_blocks import (
    DATA,
    describe_data_or_constant,
    function_title,
    is_folded,
    is_keras_data,
)
from tensorlens.frameworks.tensorflow.hooks import follow_calls, nothing
from tensorlens.heap import instances
from tensorlens.records.families import HANDLES
from tensorlens.records.logs.events import ALLOC, GRAPH_CALL, Context, EventLog, Label
from tensorlens.records.tensors import TensorTable

_OURS = str(Path(__file__).parents[2]) + os.sep
_MACHINERY = f"{os.sep}tensorflow{os.sep}python{os.sep}"
"""Frames between the line that calls a function and its nodes; the first call takes another way
through it than the others."""
_HANDLE = "VarHandleOp"
_BODY = re.compile(r"^.*/(?:body|cond|then|else|branch_?\d*|branches)/_\d+/")
"""Prefix of a node of an inlined body of a loop or branch."""
_NUMBER = re.compile(r"(?<=[A-Za-z])_\d+$")


@dataclass(frozen=True, slots=True)
class _ContextFacts:
    """Facts of a context."""

    number: int
    """Of the context that takes its place."""
    origin: NodeOrigin | None
    is_between: bool
    """Whether a function was running and none of its nodes."""


class GraphLines:
    """Origins of the nodes of live functions, looked up once a node."""

    def __init__(self) -> None:
        self.called: Callable[[], None] = nothing
        """Called where Python calls a function."""
        self._nodes = Nodes()

    def start(self) -> Callable[[], None]:
        """Read functions that die before the recording ends, as ``fit``'s input pipelines do.

        Returns what ends that.
        """
        met: set[str] = set()
        functions = self._nodes.functions

        def begin(name: str) -> None:
            self.called()
            if name not in met:
                met.add(name)
                functions.catch_up()

        return follow_calls(begin)

    def amend(self, log: EventLog) -> None:
        """Give events inside of graph functions the stack of their node below that of the call.

        What the innermost frames are then is the code that made the node; outside of it is the
        line that called the function.
        """
        known = functools.cache(functools.partial(self._known, log))
        label = functools.cache(functools.partial(self._label, log))
        stacks: dict[tuple[int, int], int] = {}
        before: dict[int, tuple[int, int]] = {}
        stack, context = array("i"), array("i")
        for row, (row_stack, row_context) in enumerate(zip(log.stack, log.context, strict=True)):
            if log.label[row] < 0 and log.kind[row] <= ALLOC:
                found = label(row_context, row_stack, log.size[row])
                if found is not None:
                    log.name(row, found)
            facts = known(row_context)
            place = row_stack, facts.number
            if facts.origin is not None:
                key = row_stack, row_context
                if key not in stacks:
                    stacks[key] = _below(log, _callers(log, row_stack), facts.origin)
                place = stacks[key], facts.number
            elif facts.is_between:
                # what a node's end gives back
                thread = log.contexts[row_context].thread
                place = before.get(thread, (_callers(log, row_stack), facts.number))
            if row_context >= 0 and not facts.is_between:
                before[log.contexts[row_context].thread] = place
            stack.append(place[0])
            context.append(place[1])
        log.stack, log.context = stack, context

    def _label(self, log: EventLog, number: int, stack: int, nbytes: int) -> Label | None:
        context = log.contexts[number] if number >= 0 else Context()
        if context.op is None:
            return Label(DATA, "input") if is_keras_data(log.stacks.of(stack)) else None
        if context.op == _HANDLE:
            # of a variable that has died since
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

    def _known(self, log: EventLog, number: int) -> _ContextFacts:
        if number < 0:
            return _ContextFacts(-1, None, False)
        context = log.contexts[number]
        if context.outer is None:
            return _ContextFacts(number, None, False)
        title = function_title(context.outer)
        if context.op is None:
            return _ContextFacts(log.context_number(replace(context, outer=title)), None, True)
        origin = self._nodes.find(context.op, context.outer)
        if origin is None:
            return _ContextFacts(log.context_number(replace(context, outer=title)), None, False)
        is_backward = origin.phase == "backward"
        forward = -1
        if is_backward and origin.forward is not None:
            forward = _below(log, -1, origin.forward)
        amended = replace(
            context,
            op=origin.op if origin.layer else _plain(context.op),
            outer=None,
            node=origin.op if is_backward else None,
            forward=forward,
            phase=origin.phase,
            module=origin.layer,
        )
        return _ContextFacts(log.context_number(amended), origin, False)


def _callers(log: EventLog, stack: int) -> int:
    """Return a stack without the innermost frames of TensorFlow, and of ours that told it."""
    stacks = log.stacks
    while stack >= 0:
        file = stacks.frames[stacks.frame[stack]].filename
        if _MACHINERY not in file and not file.startswith(_OURS):
            break
        stack = stacks.parent[stack]
    return stack


def _plain(node: str) -> str:
    """Return a node's name without the calls around it, loops' bodies and the number at its end.

    Of ``lstm/while/body/_150/lstm/while/add_3`` it is ``lstm/while/add``.
    """
    return _NUMBER.sub("", bare_name(_BODY.sub("", node)))


def _below(log: EventLog, outside: int, origin: NodeOrigin) -> int:
    node = outside
    for line in reversed(origin.frames or origin.stack):
        node = log.stacks.push(node, frame_of(line))
    return node


_LAYERS = "keras.src.layers.layer"


class TensorflowRecorder(NativeRecorder):
    """Records spans of what TensorFlow's tapped allocator hands out; spans may overlap."""

    def __init__(self, allocator: NativeAllocator) -> None:
        super().__init__(allocator)
        # a recording may begin first: Keras is imported when its first attribute is read
        when_imported(_LAYERS, self._follow_layers)

    def _follow_layers(self) -> None:
        # one method calls all layers, below its decorators
        function: Any = inspect.unwrap(vars(kinds.layer())["__call__"])
        self._library.tl_module_call(id(function.__code__))


def module_paths(roots: Sequence[CensusRoot] = ()) -> ModulePath:
    """Return what gives the path of a layer that lives now, by its address and type's name."""
    paths = {
        (id(layer), type(layer).__name__): layer_path(layer) for layer in instances(kinds.layer())
    }
    return lambda address, kind: paths.get((address, kind))


_recorder = functools.cache(TensorflowRecorder)
"""Returns the recorder of an allocator, of which there is one."""


def start(options: RecordOptions) -> Mapping[str, Recorder]:
    """Record what TensorFlow's CPU allocator hands out from now on.

    Raises:
        NativeUnavailable: there is no native counter, or no stacks on this Python.
    """
    from tensorlens.frameworks.tensorflow.eager_gradients import EagerGradients

    native = _recorder(cpu.recordable())
    gradients, lines = EagerGradients(native.thread_now), GraphLines()

    def observe() -> Callable[[], None]:
        ends = [watch(), gradients.start(), lines.start()]

        def end() -> None:
            for each in ends:
                each()

        return end

    def amend(log: EventLog, amendment: Amendment) -> None:
        lines.amend(log)
        gradients.amend(log, amendment)

    hooks = FrameworkHooks(cpu.CpuCounter.source, observe, _look, module_paths, amend)
    recorder = HostRecorder(options, native, hooks)
    # whoever follows calls must not keep a recording that nobody ends
    reference = weakref.ref(recorder)
    lines.called = lambda: _note(reference)
    return {"tensorflow": recorder}


def _note(reference: weakref.ref[HostRecorder]) -> None:
    recorder = reference()
    if recorder is not None:
        recorder.note(GRAPH_CALL)


def _look(roots: Sequence[CensusRoot], moment: Moment) -> tuple[TensorTable, ModulePath]:
    from tensorlens.frameworks.tensorflow.census.findings import census

    # modules that are gone at the end have no paths
    path = module_paths(roots) if moment == "end" else lambda address, kind: None
    return census(roots).tensors, path
