"""The role and name of each block: from a census, or from the operators that ran."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

from tensorlens.recording.analysis.event_index import EventIndex, event_index
from tensorlens.recording.analysis.sites import Site
from tensorlens.records.logs.events import FREE, START, Context, Label
from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import short_line

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

TEMPORARY = "temporary"
"""Allocated and freed while one operator, node or optimizer step ran."""

BEFORE = "before the recording"

_INPUT = "input"
_KEPT = {
    "forward": "activation",
    "backward": "gradient",
    "optimizer": "optimizer",
    "other": "other",
}
_OF_GRAPH = re.compile(r"(?:.*: )?(\w+Backward\d*\.(?:result|output)[^:]*)|(\w+Backward\d*\.[^:]+)")
"""Names of a node's result, with or without a module, and of a tensor that a node saved.

Such as ``fc: ExpBackward0.result`` and ``MmBackward0.self``.
"""
_SEPARATOR = re.compile(r"[./]")
_OF_MODULES = ("parameter", "buffer", "gradient", "optimizer")
"""Roles whose names tell the module: ``fc1.weight.grad``, ``Adam.fc1.weight.exp_avg``."""
_Likeness = tuple[int, int, int]


class Roles:
    """Role and name of each allocation of a log, by its row.

    If a census labelled the block, the role is the label's, but an input that a module made is an
    activation. Else it follows from the phase: a block kept by forward is an activation, by
    backward a gradient (an activation if the operator made an autograd node: it was computed
    again), by an optimizer the optimizer's; any other is ``other``. A graph, which states its
    phases itself, keeps variables alone, which a census labels: the rest of its optimizer is
    :data:`TEMPORARY`. So is a block freed while the same operator or node ran, or by the end of the
    same optimizer step, unless its allocation was dropped. An unknown block from before the
    recording is ``other``.

    A block of a data parallel wrapper has the role of its content, however it is made; a value that
    a Keras layer makes for a weight is a parameter.

    Any other block without a label takes the role and name of labelled blocks like it (same stack,
    size, and context but for the thread, thus the same line, operator and module in another step),
    each if they all have the same. Without such a name it is named after its origin:
    ``fc1: aten::linear``, ``aten::mm at train.py:12``, ``step() at train.py:12``.
    """

    def __init__(self, index: EventIndex) -> None:
        self.index = index
        self._made = cache(_made_by)
        self._owner = cache(self._owned_by)

    def role(self, row: int) -> str:
        """Return one of :data:`~tensorlens.roles.BLOCK_ROLES`."""
        label, site = self.label(row), self.index.site(row)
        if label is not None:
            made_inside = label.role == _INPUT and site.module
            return _KEPT["forward"] if made_inside else label.role
        purpose = site.purpose
        if purpose is not None and not purpose.has_scratch:
            return purpose.role
        if self._is_temporary(row):
            return TEMPORARY
        if purpose is not None:
            return purpose.role
        alike = self._alike.get(self._likeness(row)) if self._alike else None
        return _kept_as(site) if alike is None else alike[0]

    def name(self, row: int) -> str:
        """Return what the block is called; never empty."""
        return self.named(row) or self._fallback(row)

    def named(self, row: int) -> str | None:
        """Return the name that a census gave the block or blocks like it, or None."""
        label = self.label(row)
        name = self._inherited(row) if label is None else label.name
        module = self.index.site(row).module
        if name is None or not module:
            return name
        # the graph's own guess fails for sharded parameters, and after the last parameter
        if of_graph := _OF_GRAPH.fullmatch(name):
            return f"{module}: {of_graph[1] or of_graph[2]}"
        return name

    def module(self, row: int) -> str | None:
        """Return the path of the module that made the block or has its parameter, or None."""
        module, label = self.index.site(row).module, self.label(row)
        if module is not None or label is None or label.role not in _OF_MODULES:
            return module
        return self._owner(label.name)

    def label(self, row: int) -> Label | None:
        """Return the label that a census gave the block itself, or None."""
        number = self.index.log.label[row]
        return None if number < 0 else self.index.log.labels[number]

    def _inherited(self, row: int) -> str | None:
        alike = self._alike.get(self._likeness(row)) if self._alike else None
        return None if alike is None or self._is_temporary(row) else alike[1]

    def _fallback(self, row: int) -> str:
        log, site = self.index.log, self.index.site(row)
        if not log.was_before(row):
            return self._made(site)
        return f"{BEFORE},{_at(site.charged)}" if site.charged else BEFORE

    def _is_temporary(self, row: int) -> bool:
        index = self.index
        if index.site(row).phase == "optimizer":
            given_back = index.within_phase(row)
        else:
            given_back = index.within_run(row)
        return given_back and index.log.kind[row] != START

    def _owned_by(self, name: str) -> str | None:
        """Return the innermost module that ran whose path is a prefix of a name."""
        path = name.rpartition(": ")[2]
        ends = [match.start() for match in _SEPARATOR.finditer(path)]
        # an optimizer's names begin with its own
        parts = (path[start:end] for start in (0, path.find(".") + 1) for end in reversed(ends))
        return next((part for part in parts if part in self._modules), None)

    @cached_property
    def _modules(self) -> frozenset[str | None]:
        log = self.index.log
        return frozenset((*log.stacks.modules, *(context.module for context in log.contexts)))

    @cached_property
    def _alike(self) -> dict[_Likeness, tuple[str, str | None]]:
        """Likeness to the role, and name if one, that all its blocks named by a census have."""
        log = self.index.log
        found: dict[_Likeness, set[int]] = {}
        if log.labels:
            for row, number in enumerate(log.label):
                if number >= 0 and log.kind[row] < FREE:
                    found.setdefault(self._likeness(row), set()).add(number)
        alike: dict[_Likeness, tuple[str, str | None]] = {}
        for likeness, numbers in found.items():
            roles = {log.labels[number].role for number in numbers}
            names = {log.labels[number].name for number in numbers}
            if len(roles) == 1 and self._tells(likeness):
                alike[likeness] = roles.pop(), names.pop() if len(names) == 1 else None
        return alike

    def _likeness(self, row: int) -> _Likeness:
        log = self.index.log
        number = log.context[row]
        # a node of a graph runs on another thread in each step
        number = number if number < 0 else self._on_any_thread[number]
        return log.stack[row], number, log.size[row]

    @cached_property
    def _on_any_thread(self) -> list[int]:
        """For each context, the number of the first one that differs at most in its thread."""
        first: dict[Context, int] = {}
        return [
            first.setdefault(replace(context, thread=0), number)
            for number, context in enumerate(self.index.log.contexts)
        ]

    def _tells(self, likeness: _Likeness) -> bool:
        stack, number, _ = likeness
        context = self.index.table[stack, number].context
        return stack >= 0 or context.op is not None or context.node is not None


def roles_of(recording: Recording) -> Roles:
    """Return the roles of a recording's blocks, made once."""
    return recording.once("roles", lambda now: Roles(event_index(now)))


def block_roles(roles: Roles) -> list[str]:
    """Return the role of each row that is an allocation; of others it is empty."""
    return [roles.role(row) if kind < FREE else "" for row, kind in enumerate(roles.index.log.kind)]


def _kept_as(site: Site) -> str:
    """Return the role of a block that outlives the operator, node or step that made it."""
    if site.computed_again:
        return "activation"
    if site.context.phase == "optimizer":
        # stated by a graph: its optimizer keeps only variables, which have labels
        return TEMPORARY
    return _KEPT[site.phase]


def _made_by(site: Site) -> str:
    """Return the name of a block after its origin."""
    context, module, line = site.context, site.module, site.charged
    if site.purpose is not None:
        return f"{module}: {site.purpose.what}" if module else site.purpose.what
    what = context.outer or context.op or context.node
    if context.node is not None and site.phase == "backward" and not context.grad:
        what = context.node
    if what is not None:
        return f"{module}: {what}" if module else f"{what}{_at(line)}"
    if line is None:
        return module or "no stack recorded"
    return f"{module}: {short_line(line)}" if module else f"{line.function}(){_at(line)}"


def _at(line: SourceLine | None) -> str:
    return "" if line is None else f" at {short_line(line)}"
