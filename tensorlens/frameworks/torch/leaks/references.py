"""Counts the references that Python has to objects that torch may hold, too.

A tensor that autograd saved keeps the Python object it once had, and the collector shows that
object although nothing in Python refers to it. Only the counts of references tell them apart.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from array import array
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import torch

_base = torch._C.TensorBase


def tensor_references(tensors: list[Any], objects: list[Any]) -> array[int]:
    """Return how many references each tensor has besides torch's own and those of the two lists.

    Args:
        tensors: tensors of the heap, each once.
        objects: the heap, with each of ``tensors`` in it.
    """
    counts = _counts(tensors, objects)
    is_held = _is_held_by_torch()
    for index, tensor in enumerate(tensors):
        counts[index] -= is_held(tensor)
    return counts


def node_references(nodes: list[Any], objects: list[Any]) -> array[int]:
    """Return the same for nodes, torch's own reference counted in: see :func:`is_kept`."""
    return _counts(nodes, objects)


def is_kept(node: Any) -> bool:
    """Return whether torch holds the Python object of a node for as long as it needs the node.

    It always did for a custom function's, which has the content, and does for all in torch 2.13.
    """
    return issubclass(type(node), torch._C._FunctionBase) or _keeps_nodes()


def _counts(items: list[Any], objects: list[Any]) -> array[int]:
    # what is in the two lists and nowhere else shows how many of the references are ours
    items.append(object())
    objects.append(items[-1])
    counts = array("q", map(sys.getrefcount, items))
    ours = counts.pop()
    del items[-1], objects[-1]
    return array("q", map(int.__sub__, counts, repeat(ours)))


@functools.cache
def _is_held_by_torch() -> Callable[[Any], bool]:
    """Return what tells whether torch holds the Python object of a tensor.

    torch 2.13 does so while it refers to the tensor itself; older ones do only when Python has let
    go of it, and note that at the beginning of the object.
    """
    use_count = getattr(_base, "_use_count", None)
    if use_count is None or not _is_held_when_shared(use_count):
        return lambda tensor: bool(
            ctypes.c_bool.from_address(id(tensor) + object.__basicsize__).value
        )
    return lambda tensor: bool(use_count(tensor) > 1)


def _is_held_when_shared(use_count: Callable[[Any], int]) -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        alone, shared = (torch.zeros(1, requires_grad=True) for _ in range(2))
        # saves nothing, so that no hook of the program's is asked
        kept: Sequence[Any] = (shared.neg(),)
    counts = sys.getrefcount(shared) - sys.getrefcount(alone)
    return len(kept) == counts == 1 and use_count(shared) > use_count(alone) == 1


@functools.cache
def _keeps_nodes() -> bool:
    with torch.inference_mode(False), torch.enable_grad():
        made = torch.zeros(1, requires_grad=True).neg()
    node = made.grad_fn
    before = sys.getrefcount(node)
    del made
    return sys.getrefcount(node) < before
