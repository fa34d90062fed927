"""Finds the live arrays, and what the heap has of Keras's and of JAX's keys, by kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorlens.frameworks.heap import living, select
from tensorlens.frameworks.heap.fallback import dict_of
from tensorlens.frameworks.jax.runtime import live_arrays
from tensorlens.frameworks.keras import kinds

_KEY_MODULES = ("jax._src.random.prng", "jax._src.prng")


@dataclass(slots=True)
class Heap:
    """What there is. Only the arrays are JAX's to tell; the collector shows the rest."""

    objects: list[Any]
    arrays: list[Any]
    variables: list[Any]
    layers: list[Any]
    optimizers: list[Any]
    seed_generators: list[Any]
    metrics: list[Any]
    keys: list[Any]
    """Arrays of keys of random numbers, each of which is kept in a plain array."""


def look(roots: list[Any]) -> Heap:
    """Return what there is now.

    ``roots`` are found even where the collector does not show them (``gc.freeze``).
    """
    objects = living()
    wanted = (
        *(kinds.variable(), kinds.layer(), kinds.optimizer()),
        *(kinds.seed_generator(), kinds.metric()),
        *(kinds.imported(module, "PRNGKeyArray") for module in _KEY_MODULES),
    )
    variables, layers, optimizers, generators, metrics, *keys = select(objects, wanted)
    for root in roots:
        for kind, items in ((kinds.layer(), layers), (kinds.optimizer(), optimizers)):
            if issubclass(type(root), kind) and all(root is not item for item in items):
                items.append(root)
    every_key = [key for some in keys for key in some]
    heap = Heap(
        objects, live_arrays(), variables, layers, optimizers, generators, metrics, every_key
    )
    # Python makes the dict of an instance when it is first asked for
    asked = (variables, layers, optimizers, generators, metrics)
    contents = (dict_of(item) for items in asked for item in items)
    objects.extend(content for content in contents if content is not None)
    return heap
