"""Tensors that autograd's graph saved, read without unpacking any of them.

A node is read through ``_raw_saved_*`` (``SavedTensor.data``), never through ``_saved_*`` or
``saved_tensors``, which unpack: under checkpointing that would run the forward pass again. What
checkpointing keeps instead of activations is read from attributes of torch.utils.checkpoint
(torch 2.13); if an older torch lacks one, it is left out.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from tensorlens.frameworks.base import KeptGraph
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.heap import live_objects, select
from tensorlens.heap.attributes import is_subtype

LEAF = "AccumulateGrad"
"""Type of the nodes of leaves."""
_CHECKPOINTED = ("fn", "function")
"""Names of the checkpointed function in the closure: in torch 2.13, and in older ones."""
REENTRANT = "CheckpointFunctionBackward"
_STATES = ("fwd_cpu_state", "fwd_device_states")
_RAW = "_raw_saved_"
_MAX_DEPTH = 4
_MADE_BY_CLASS = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: the type was made by a class statement."""
_base = torch._C.TensorBase
_flags = type.__dict__["__flags__"].__get__
"""A type's flags, without asking its metaclass."""


@dataclass(slots=True, eq=False)
class Region:
    """A checkpointed region: a part of the forward pass that backward runs again."""

    module: Any = None
    """The checkpointed module; None if a function is checkpointed."""
    nodes: list[Any] = field(default_factory=list)
    """Nodes made in the region."""


@dataclass(slots=True)
class Saved:
    """One tensor that a node saved."""

    tensor: Any
    node: Any
    argument: str
    """``self``, ``mat1``, ``indices[0]``, ``saved_tensors[2]``."""
    packed_by: str | None = None
    """The hook, if the tensor is from its packed value and not the saved tensor itself."""
    region: Region | None = None
    """Checkpointed region that needs the tensor."""

    def is_result(self) -> bool:
        """Return whether the tensor is a result of the node; else it is an input of the node."""
        return self.argument.startswith(("result", "output", "logsumexp"))


@dataclass(slots=True)
class Graph:
    """The nodes reached from all live roots, and the tensors that they hold."""

    nodes: list[Any] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    leaves: dict[Any, Any] = field(default_factory=dict)
    """AccumulateGrad node to its variable."""
    recomputed: int = 0
    """Number of values that checkpointing did not keep."""
    reentrant: int = 0
    """Number of regions that reentrant checkpointing did not keep."""
    packed: int = 0
    """Number of values that a hook packed into something without tensors."""
    unread: int = 0
    """Number of saved values that could not be read."""
    is_whole: bool = True
    """Whether the walk went to its end: a long backward pass in another thread ends it."""


def node_types() -> tuple[type, ...]:
    """Return the types of autograd's own nodes, to find those that a program holds."""
    # torch has one static type for each kind of node, a direct subclass of object
    kinds = (kind for kind in type.__subclasses__(object) if not _flags(kind) & _MADE_BY_CLASS)
    return tuple(kind for kind in kinds if "next_functions" in vars(kind))


def walk(roots: Iterable[Any], can_read: Callable[[], bool]) -> Graph:
    """Walk from the roots to the leaves; each node once.

    ``can_read`` is called before each node; the walk ends when it returns False.
    """
    graph = Graph()
    seen: set[Any] = set()
    for root in roots:
        if root is not None and root not in seen:
            seen.add(root)
            graph.nodes.append(root)
    regions: dict[int, Region] = {}
    for node in graph.nodes:
        if not can_read():
            graph.is_whole = False
            break
        for below in nodes_below(node):
            if below not in seen:
                seen.add(below)
                graph.nodes.append(below)
        _read(node, graph, regions)
    return graph


def maker_of(tensor: Any) -> Any:
    """Return the node that made a tensor, or None."""
    try:
        return _base.grad_fn.__get__(tensor)
    except Exception:
        # a view modified in a way that autograd forbids
        return None


def nodes_below(node: Any) -> list[Any]:
    """Return the nodes that receive the gradients of a node."""
    try:
        return [below for below, _ in node.next_functions if below is not None]
    except Exception:
        # a custom Function still in its forward()
        return []


def connected(nodes: Iterable[Any]) -> list[list[Any]]:
    """Group nodes by connected component, leaves left out: parameters would join all graphs."""
    part: dict[Any, Any] = {node: node for node in nodes if type(node).__name__ != LEAF}

    def root(node: Any) -> Any:
        while part[node] is not node:
            part[node] = part[part[node]]
            node = part[node]
        return node

    for node in part:
        for below in nodes_below(node):
            if below in part:
                part[root(below)] = root(node)
    groups: dict[Any, list[Any]] = {}
    for node in part:
        groups.setdefault(root(node), []).append(node)
    return list(groups.values())


def graphs_kept() -> list[KeptGraph]:
    """Return the connected components of autograd's graph that saved tensors, oldest first.

    Computations that share only parameters are different components.
    """
    with undisturbed() as can_read:
        tensors = select(live_objects(), (torch.Tensor,))[0]
        made = [(tensor, node) for tensor in tensors if (node := maker_of(tensor)) is not None]
        graph = walk((node for _, node in made), can_read)
        saved: dict[Any, set[int]] = {}
        for each in graph.saved:
            saved.setdefault(each.node, set()).add(storage_address(each.tensor))
        results: dict[Any, list[int]] = {}
        for tensor, node in made:
            results.setdefault(node, []).append(storage_address(tensor))
        kept = [
            KeptGraph(
                max(node._sequence_nr() for node in part),
                frozenset().union(*(saved.get(node, ()) for node in part)) - {0},
                tuple(filter(None, chain.from_iterable(results.get(node, ()) for node in part))),
            )
            for part in connected(graph.nodes)
            if not saved.keys().isdisjoint(part)
        ]
        return sorted(kept, key=lambda graph: graph.newest)


def storage_address(tensor: Any) -> int:
    """Return the address of a tensor's memory; 0 if it has none."""
    try:
        return int(_base.untyped_storage(tensor).data_ptr())
    except Exception:
        # sparse tensors and the like have none of their own
        return 0


def _read(node: Any, graph: Graph, regions: dict[int, Region]) -> None:
    variable = getattr(node, "variable", None) if type(node).__name__ == LEAF else None
    if variable is not None:
        graph.leaves[node] = variable
        return
    for attribute in _raw_attributes(type(node)):  # type: ignore[arg-type]
        argument = attribute.removeprefix(_RAW)
        try:
            value = getattr(node, attribute)
        except Exception:
            # freed by backward
            continue
        if not isinstance(value, tuple):
            _read_value(value, node, argument.rstrip("_"), graph, regions)
            continue
        if type(node).__name__ == REENTRANT:
            _read_region(node, value, graph)
            continue
        name = "saved_tensors" if argument == "tensors" else argument
        for index, item in enumerate(value):
            _read_value(item, node, f"{name}[{index}]", graph, regions)


def _read_region(node: Any, inputs: tuple[Any, ...], graph: Graph) -> None:
    graph.reentrant += 1
    region = Region(_module_of(getattr(node, "run_function", None)), [node])
    kept = [(f"checkpoint input[{index}]", each.data) for index, each in enumerate(inputs)]
    states = [("checkpoint random state", getattr(node, name, None)) for name in _STATES]
    _add_kept([*kept, *states], node, region, graph)


def _add_kept(kept: Iterable[tuple[str, Any]], node: Any, region: Region, graph: Graph) -> None:
    for argument, value in kept:
        for tensor in tensors_in(value):
            graph.saved.append(Saved(tensor, node, argument, region=region))


def _read_value(
    value: Any, node: Any, argument: str, graph: Graph, regions: dict[int, Region]
) -> None:
    try:
        data, hook = value.data, value.unpack_hook
    except Exception:
        graph.unread += 1
        return
    if hook is None:
        if isinstance(data, torch.Tensor):
            graph.saved.append(Saved(data, node, argument))
        return
    frame = _frame_of(hook)
    if frame is None:
        tensors = list(tensors_in(data))
        graph.packed += not tensors
        for tensor in tensors:
            graph.saved.append(Saved(tensor, node, argument, packed_by=_hook_name(hook)))
        return
    graph.recomputed += 1
    known = regions.get(id(frame))
    if known is not None:
        known.nodes.append(node)
        return
    region = regions[id(frame)] = _region_of(frame)
    region.nodes.append(node)
    _add_kept(_kept_values(frame), node, region, graph)


# bounded, as every custom Function has a type of its own
@functools.lru_cache(maxsize=10_000)
def _raw_attributes(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith(_RAW))


def _hook_name(hook: Any) -> str:
    qualname = getattr(hook, "__qualname__", None) or type(hook).__name__
    return str(qualname).partition(".")[0]


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield the tensors in a value: the value itself, or in plain containers."""
    kind = type(value)
    if is_subtype(kind, torch.Tensor):
        yield value
    elif depth < _MAX_DEPTH and any(kind is plain for plain in (tuple, list, dict)):
        for item in list(dict.values(value)) if kind is dict else list(value):
            yield from tensors_in(item, depth + 1)


def _frame_of(hook: Any) -> Any:
    """Return checkpoint's frame of a region by its unpack hook; None for another hook."""
    if getattr(hook, "__module__", None) != "torch.utils.checkpoint":
        return None
    return _closure(hook).get("frame")


def _region_of(frame: Any) -> Region:
    """Build the region of checkpoint's frame."""
    free = _closure(getattr(frame, "recompute_fn", None))
    return Region(_module_of(next(filter(None, map(free.get, _CHECKPOINTED)), None)))


def _kept_values(frame: Any) -> Iterator[tuple[str, Any]]:
    """Yield what checkpoint's frame keeps: ``(description, tensor or container)``."""
    for index, item in enumerate(getattr(frame, "saved_args", ())):
        # torch 2.13 keeps tensors as saved tensors, other values as they are
        saved = issubclass(type(item), torch._C._autograd.SavedTensor)
        yield f"checkpoint input[{index}]", item.data if saved else item
    cells = _closure(getattr(frame, "recompute_fn", None))
    for name in _STATES:
        yield "checkpoint random state", cells.get(name)


def _module_of(function: Any) -> Any:
    """Return the module behind a callable: itself, a method's object, or a closure's only one."""
    while type(function) is functools.partial:
        function = function.func
    if type(function) is types.MethodType:
        function = function.__self__
    if type(function) is types.FunctionType:
        held = [each for each in _closure(function).values() if _is_module(each)]
        function = held[0] if len(held) == 1 else None
    return function if _is_module(function) else None


def _is_module(item: Any) -> bool:
    return issubclass(type(item), torch.nn.Module)


def _closure(function: Any) -> dict[str, Any]:
    """Return the values of a function's free variables, without those that have none."""
    code = getattr(function, "__code__", None)
    found = {}
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False
    ):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found
