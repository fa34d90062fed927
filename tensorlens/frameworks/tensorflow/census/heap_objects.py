"""Finds what the heap has of TensorFlow's and Keras's, for a census to read and to name."""

from __future__ import annotations

from typing import Any

from tensorflow.python.data.ops.dataset_ops import DatasetV2
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.distribute.values import DistributedVariable
from tensorflow.python.eager.tape import Tape
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.framework.ops import EagerTensor
from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.tensorflow.census.rows import Heap
from tensorlens.heap import live_objects, select
from tensorlens.heap.attributes import content_of, items_of
from tensorlens.heap.fallback import dict_of


def look(roots: list[Any]) -> Heap:
    """Return the heap's objects by kind.

    ``roots`` are found even where the collector does not show them (``gc.freeze``).
    """
    objects = live_objects()
    found = select(
        objects,
        (
            *(EagerTensor, BaseResourceVariable, DistributedVariable),
            *(kinds.tensorflow_variable(), kinds.layer(), kinds.optimizer()),
            *(kinds.seed_generator(), kinds.metric(), Tape),
            *(DatasetV2, OwnedIterator, FuncGraph),
        ),
        (list,),
    )
    heap = Heap(objects, *found)
    known = {id(each) for each in heap.layers} | {id(each) for each in heap.optimizers}
    for root in roots:
        for kind, items in ((kinds.layer(), heap.layers), (kinds.optimizer(), heap.optimizers)):
            if issubclass(type(root), kind) and id(root) not in known:
                items.append(root)
    _bring_hidden(heap)
    return heap


def _bring_hidden(heap: Heap) -> None:
    """Take in what objects of the heap refer to and the heap does not show."""
    shown = {id(each) for each in heap.keras_variables}
    for holder in (*heap.layers, *heap.optimizers):
        content = content_of(holder)
        for attribute in ("_trainable_variables", "_non_trainable_variables", "_variables"):
            for each in items_of(content.get(attribute)):
                if issubclass(type(each), kinds.tensorflow_variable()) and id(each) not in shown:
                    shown.add(id(each))
                    heap.keras_variables.append(each)
    _bring(heap.keras_variables, "_value", BaseResourceVariable, heap.variables)
    _bring(heap.variables, "_handle", EagerTensor, heap.tensors)


def _bring(holders: list[Any], attribute: str, kind: type, items: list[Any]) -> None:
    shown = {id(each) for each in items}
    for holder in holders:
        inner = content_of(holder).get(attribute)
        if issubclass(type(inner), kind) and id(inner) not in shown:
            shown.add(id(inner))
            items.append(inner)


def contents(heap: Heap) -> list[Any]:
    """Return the ``__dict__`` of everything that was asked for it."""
    asked = (
        *(heap.variables, heap.distributed, heap.keras_variables, heap.layers, heap.optimizers),
        *(heap.seed_generators, heap.metrics, heap.datasets),
    )
    found = (dict_of(item) for items in asked for item in items)
    return [content for content in found if content is not None]
