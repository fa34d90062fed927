"""Memory of operations on a device: their results, and their scratch while they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tensorlens.planning.tensorflow.execution import lists
from tensorlens.planning.tensorflow.execution.buffer_forwarding import (
    ALIASES,
    FORWARDS,
    FORWARDS_SECOND,
    is_alias,
    viewed,
)
from tensorlens.planning.tensorflow.execution.inference import computed, inferred
from tensorlens.planning.tensorflow.execution.live_values import (
    NOTHING,
    Buffer,
    Counted,
    Items,
    Memory,
    Value,
    drop,
    keep,
)
from tensorlens.planning.tensorflow.graph.nodes import ITEM_SIZES, Node, Output, Shape


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that no tensor of the graph has."""

    nbytes: int
    """The likeliest, where that depends on the device."""
    name: str
    """Its name: ``cuDNN workspace``."""
    least: int = -1
    most: int = -1
    """The bounds; -1: exactly so much."""
    before: bool = False
    """Whether it is taken before the results are."""


ScratchOf = Callable[[Node, Sequence[Value]], Sequence[Scratch]]
"""Gives what an operation takes besides its results while it runs."""

_FORWARDS = (FORWARDS, FORWARDS_SECOND)
"""Of each result."""
_SCALARS = frozenset(("Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd", "LogicalNot"))
"""Conditions of loops."""
UPDATES = frozenset(("AssignAddVariableOp", "AssignSubVariableOp"))


class Machine:
    """Runs kernels on one device, whose memory is only counted.

    Args:
        memory: takes note of every request.
        variables: handle to its value, referred to once by the variable.
        feeds: name of a placeholder to its value, referred to once by the caller.
        scratch: what kernels take besides their results.
        unknown: told an operation whose results have no shape.
        forwards: whether results are written into inputs that nobody else reads.
    """

    def __init__(
        self,
        memory: Memory,
        variables: dict[str, Value],
        feeds: Mapping[str, Value],
        scratch: ScratchOf,
        unknown: Callable[[Node], None],
        forwards: bool = True,
    ) -> None:
        self.memory = memory
        self.variables = variables
        self._feeds = feeds
        self._scratch = scratch
        self._unknown = unknown
        self._forwards = forwards
        self._constants: dict[int, Value] = {}
        self._shaped: dict[tuple[int, Shape], Node] = {}
        """Operations by their number, with shapes that the graph does not tell."""
        self._place: Node | None = None

    def run(self, node: Node, values: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Buffer]]:
        """Return outputs, and what is given back at the end."""
        self._place = node
        needed = self._scratch(node, values)
        if not needed:
            return self._outputs(node, values), ()
        before: list[Buffer] = []
        after: list[Scratch] = []
        for each in needed:
            if each.before:
                before.append(self._take_scratch(each))
            else:
                after.append(each)
        outputs = self._outputs(node, values)
        before += [self._take_scratch(each) for each in after]
        return outputs, before

    def free(self, buffer: Buffer) -> None:
        """Give a buffer's bytes back."""
        if buffer.row >= 0:
            self.memory.give(buffer.row, self._place)

    def assign(self, name: str, new: Value, old: Value | None) -> None:
        """Let a variable have another value; the old one goes unless somebody still reads it."""
        self.variables[name] = new
        if old is not None:
            drop(old, self.free)
        if isinstance(new.held, Buffer) and new.held.row >= 0:
            before = None if old is None else old.held
            row = before.row if isinstance(before, Buffer) and before.refs > 0 else -1
            self.memory.assign(name, new.held.row, row, self._place)

    def allocate(self, nbytes: int, name: str | None = None) -> Buffer:
        """Return a new buffer, referred to by nobody."""
        row = self.memory.take(nbytes, self._place, name) if nbytes else -1
        return Buffer(nbytes, row)

    def new(self, shape: Shape, dtype: str) -> Value:
        """Return a new tensor."""
        return Value(self.allocate(prod(shape) * ITEM_SIZES.get(dtype, 0)), shape)

    def _take_scratch(self, scratch: Scratch) -> Buffer:
        buffer = self.allocate(scratch.nbytes or scratch.most, scratch.name)
        if scratch.most >= 0 and buffer.row >= 0:
            self.memory.bound(buffer.row, scratch.least, scratch.nbytes, scratch.most)
        buffer.refs = 1
        return buffer

    def _outputs(self, node: Node, values: Sequence[Value]) -> Sequence[Value]:
        op = node.op
        special = _SPECIAL.get(op)
        if special is not None:
            return special(self, node, values)
        if op in lists.KERNELS:
            return lists.KERNELS[op](self, node, values)
        if op in lists.ARITHMETIC and any(isinstance(each.held, Items) for each in values):
            return lists.ARITHMETIC[op](self, node, values)
        if node.outputs and node.outputs[0].shape is None:
            node = self._with_shapes(node, values)
        if op in ALIASES or is_alias(node, values):
            return [
                value.shaped(output.shape)
                for value, output in zip(values, node.outputs, strict=False)
            ]
        whole = viewed(node, values)
        if whole is not None:
            return [Value(whole.held, output.shape, part=output.nbytes) for output in node.outputs]
        return self._computed(node, values)

    def _with_shapes(self, node: Node, values: Sequence[Value]) -> Node:
        """Return the operation with the shapes that it has this time, where they are told."""
        shape = inferred(node, values)
        if shape is None:
            return node
        known = self._shaped.get((node.number, shape))
        if known is None:
            outputs = [
                Output(each.dtype, shape if each.shape is None else each.shape)
                for each in node.outputs
            ]
            known = self._shaped[node.number, shape] = replace(node, outputs=outputs)
        return known

    def _computed(self, node: Node, values: Sequence[Value]) -> Sequence[Value]:
        number = computed(node.op, [value.number for value in values])
        made: list[Value] = []
        for slot, output in enumerate(node.outputs):
            shape = output.shape
            if shape is None:
                self._leave_out(node)
                shape = ()
            nbytes = prod(shape) * ITEM_SIZES.get(output.dtype, 0)
            held: Counted | None = None
            if slot < len(_FORWARDS) and self._forwards:
                held = self._forwarded(_FORWARDS[slot].get(node.op, ()), values, nbytes)
            if held is None:
                held = self.allocate(nbytes)
            made.append(Value(held, shape, number if slot == 0 else None, part=nbytes))
        return made

    def _forwarded(
        self, places: Sequence[int], values: Sequence[Value], nbytes: int
    ) -> Counted | None:
        """Return the buffer of an input that nobody else reads, if the kernel can write into it."""
        for place in places:
            if place >= len(values):
                break
            held = values[place].held
            is_alone = isinstance(held, Buffer) and held.refs == 1
            if is_alone and nbytes and values[place].nbytes == nbytes:
                return held
        return None

    def _leave_out(self, node: Node) -> None:
        if node.op not in _SCALARS:
            self._unknown(node)


def _constant(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    known = machine._constants.get(node.number)
    if known is None:
        output = node.outputs[0]
        known = Value(None, output.shape, node.value, numbers=node.values)
        machine._constants[node.number] = known
    return [known]


def _argument(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    if node.name in machine.variables:
        return [Value(variable=node.name)]
    return [machine._feeds.get(node.name, NOTHING)]


def _read(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    found = machine.variables.get(values[0].variable or "")
    return [NOTHING if found is None else found.shaped(None)]


def _assign(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    handle, value = values
    name = handle.variable or ""
    held = value.held
    is_alone = isinstance(held, Buffer) and held.refs == 1
    new = value.shaped(None) if is_alone else Value(machine.allocate(value.nbytes), value.shape)
    keep(new)
    old = machine.variables.get(name)
    machine.assign(name, new, old)
    return []


def _update(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    name = values[0].variable or ""
    old = machine.variables.get(name)
    if old is not None and old.held is not None and old.held.refs > 1:
        # whoever has read it keeps what it was
        machine.assign(name, keep(Value(machine.allocate(old.nbytes), old.shape)), old)
    return []


def _switch(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    data, condition = values
    if condition.number is None:
        machine._unknown(node)
    data = data.shaped(None)
    return [NOTHING, data] if condition.number in (None, True) else [data, NOTHING]


def _merge(machine: Machine, node: Node, values: Sequence[Value]) -> Sequence[Value]:
    value = values[0] if values else NOTHING
    return [value.shaped(None), NOTHING]


_SPECIAL: Mapping[str, Callable[[Machine, Node, Sequence[Value]], Sequence[Value]]] = {
    "Const": _constant,
    **dict.fromkeys(("_Arg", "Placeholder", "VarHandleOp"), _argument),
    "ReadVariableOp": _read,
    "AssignVariableOp": _assign,
    **dict.fromkeys(UPDATES, _update),
    "Switch": _switch,
    "Merge": _merge,
}
