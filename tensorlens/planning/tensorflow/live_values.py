"""Live values of a running graph, which refer to buffers, and lists of tensors with their kernels.

The kernels are those of ``core/kernels/list_kernels.cc`` of TensorFlow 2.21: what is pushed or set
shares its buffer with the list; stacking and gathering copy; a list that nobody else refers to is
changed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tensorlens.planning.tensorflow.graph import GraphNode, Shape

if TYPE_CHECKING:
    from tensorlens.planning.tensorflow.kernels import Machine


@dataclass(slots=True, eq=False)
class Buffer:
    """Bytes of one tensor, or of several that share them; gone when nobody refers to it."""

    nbytes: int
    row: int
    refs: int = 0


@dataclass(slots=True, eq=False)
class Items:
    """A list of tensors, the value of a variant; it lets go of them when nobody refers to it."""

    values: list[Value]
    refs: int = 0

    def __post_init__(self) -> None:
        self.values = [keep(value) for value in self.values]


@dataclass(slots=True, eq=False)
class Value:
    """Result of an operation: where its bytes are, and its number if that is known."""

    held: Buffer | Items | None = None
    shape: Shape | None = None
    """None where it is not known."""
    number: Any = None
    """Of a scalar, or a list of a few."""
    variable: str | None = None
    """Whose handle it is."""
    part: int | None = field(default=None, kw_only=True)
    """Its own bytes, where ``held`` has more than these; None: all of them are its own."""

    @property
    def nbytes(self) -> int:
        """Its bytes; 0 without a buffer."""
        if not isinstance(self.held, Buffer):
            return 0
        return self.held.nbytes if self.part is None else self.part

    def shaped(self, shape: Shape | None) -> Value:
        """Return the same, as another operation hands it on."""
        return Value(self.held, shape or self.shape, self.number, self.variable, part=self.part)


NOTHING = Value()


def keep(value: Value) -> Value:
    """Refer to it once more."""
    if value.held is not None:
        value.held.refs += 1
    return value


def drop(value: Value, free: Callable[[Buffer], None]) -> None:
    """Refer to it once less."""
    held = value.held
    if held is None:
        return
    held.refs -= 1
    if held.refs:
        return
    if isinstance(held, Buffer):
        free(held)
        return
    for each in held.values:
        drop(each, free)
    held.values.clear()


Kernel = Callable[["Machine", GraphNode, Sequence[Value]], Sequence[Value]]


def _own(value: Value) -> Items:
    """Return the list to write into: the one itself where nobody else refers to it."""
    items = value.held
    if not isinstance(items, Items):
        return Items([])
    return items if items.refs == 1 else Items(items.values)


def _values(value: Value) -> Sequence[Value]:
    return value.held.values if isinstance(value.held, Items) else ()


def _empty(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    return [Value(Items([]))]


def _reserve(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    number = values[1].number if len(values) > 1 else node.value
    return [Value(Items([NOTHING] * int(number or 0)))]


def _push(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    items = _own(values[0])
    items.values.append(keep(values[1]))
    return [Value(items)]


def _pop(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    items = _own(values[0])
    if not items.values:
        return [Value(items), NOTHING]
    popped = items.values.pop()
    if popped.held is not None:
        popped.held.refs -= 1
    return [Value(items), popped]


def _set(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    handle, index, item = values[0], values[1], values[2]
    items = _own(handle)
    place = index.number
    if place is None:
        machine.unknown(node)
        return [Value(items)]
    while len(items.values) <= place:
        items.values.append(NOTHING)
    drop(items.values[place], machine.free)
    items.values[place] = keep(item)
    return [Value(items)]


def _get(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    items, place = _values(values[0]), values[1].number
    if place is not None and place < len(items) and items[place].held is not None:
        return [items[place]]
    shape = node.outputs[0].shape or next((each.shape for each in items if each.shape), None)
    # what was never written reads as zeros
    return [NOTHING if shape is None else machine.new(shape, node.outputs[0].dtype)]


def _from_tensor(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    whole = values[0]
    shape = whole.shape or ()
    if not shape:
        return [Value(Items([]))]
    dtype = str(node.attrs.get("element_dtype", "float32"))
    return [Value(Items([machine.new(shape[1:], dtype) for _ in range(shape[0])]))]


def _stack(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    items, output = _values(values[0]), node.outputs[0]
    shape: Shape | None = output.shape
    if shape is None:
        element = next((each.shape for each in items if each.shape is not None), ())
        shape = (len(items), *element)
    return [machine.new(shape, output.dtype)]


def _length(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    return [Value(None, (), len(_values(values[0])))]


def nothing(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    """Return a few numbers on the host, which are not counted."""
    return [NOTHING for _ in node.outputs]


def _zeros(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    return [Value(Items([_copied(machine, each) for each in _values(values[0])]))]


def _added(machine: Machine, node: GraphNode, values: Sequence[Value]) -> Sequence[Value]:
    found: list[Value] = []
    for each in zip(*(_values(value) for value in values), strict=False):
        there = [value for value in each if value.held is not None]
        found.append(_copied(machine, there[0]) if len(there) > 1 else (there or [NOTHING])[0])
    return [Value(Items(found))]


def _copied(machine: Machine, value: Value) -> Value:
    if value.held is None:
        return NOTHING
    return Value(machine.allocate(value.nbytes), value.shape)


LIST_ARITHMETIC: Mapping[str, Kernel] = {"ZerosLike": _zeros, "AddN": _added}
"""Operations on tensors that work on lists, element by element."""

LIST_KERNELS: Mapping[str, Kernel] = {
    "EmptyTensorList": _empty,
    "TensorListReserve": _reserve,
    "TensorListPushBack": _push,
    "TensorListPopBack": _pop,
    "TensorListSetItem": _set,
    "TensorListGetItem": _get,
    "TensorListFromTensor": _from_tensor,
    "TensorListStack": _stack,
    "TensorListLength": _length,
    "TensorListElementShape": nothing,
}
