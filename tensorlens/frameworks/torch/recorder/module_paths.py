"""Paths of modules, for the frames of a recording's stacks that call them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch

from tensorlens.frameworks.base import Root
from tensorlens.frameworks.host.naming import ModulePath
from tensorlens.frameworks.torch.census.names.modules import class_name
from tensorlens.frameworks.torch.census.names.owners import Owners, without_function
from tensorlens.heap import anchors, find_holders, live_objects, select


def module_paths(roots: Sequence[Root] = ()) -> ModulePath:
    """Return what gives the path of a module that lives now, by its address and type's name."""
    objects = live_objects()
    (modules,) = select(objects, (torch.nn.Module,))[:1]
    owners = Owners(roots)
    owners.add_keras(objects)
    owners.add_found(modules, ())
    names = owners.naming.names
    nameless = array("Q", (id(module) for module, _ in owners.nameless))
    held = find_holders(objects, nameless, anchors(), names)
    for (_, node), found in zip(owners.nameless, held, strict=True):
        if found >= 0:
            owners.settle(node, found)
    types = {id(module): class_name(module) for module in modules}
    paths = owners.modules.paths

    def path(address: int, kind: str) -> str | None:
        node = paths.get(address)
        if node is None or types.get(address) != kind:
            return None
        return without_function(names[node]) or kind

    return path
