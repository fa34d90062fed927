"""Names of what models and optimizers hold, both given and found in the heap.

An optimizer's state is read as plain dicts, without calling its methods.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from tensorlens.frameworks.base import CensusRoot
from tensorlens.frameworks.host.recorder import ModulePath
from tensorlens.frameworks.torch.census.live_tensors import reducer_buckets
from tensorlens.frameworks.torch.census.names.keras import KerasOwners, is_in_use
from tensorlens.frameworks.torch.census.names.labels import Path, Users
from tensorlens.frameworks.torch.census.names.naming import (
    ModulePaths,
    Naming,
    entries,
    first_seen,
    instance_dict,
    model_name,
    outermost,
)
from tensorlens.heap.attributes import class_name, entry
from tensorlens.heap.frames import library_functions
from tensorlens.records.names import ATTRIBUTE, DistinctTexts, Names

HEAP_CLASSES = (torch.Tensor, torch._C._FunctionBase, torch.nn.Module, torch.optim.Optimizer)
"""Classes of the objects that a census selects from the heap."""
_MAX_DEPTH = 16
"""Maximum depth of containers in an optimizer's state."""
_PLAIN_TYPES = (int, float, bool, str, type(None))
_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)
_OF_CLOSURE_IN_METHOD = re.compile(r"closure of .*: self")
"""A closure in a method, such as a hook that a library registers."""
_OF_OWN_METHOD = re.compile(r".*\(\): self")
"""``self`` of a module's running method."""
_OF_FUNCTION = re.compile(r"closure of .*?: |.*?\(\): ")


def without_function(name: str) -> str:
    """Return a variable's name without its function: ``net.fc`` of ``main(): net.fc``."""
    function = _OF_FUNCTION.match(name)
    return name[function.end() :] if function else name


class Owners:
    """Names from models, optimizers and other roots, and from those of the heap.

    The optimizers' ``__dict__``, which Python creates on first use, is added to ``objects``.
    """

    def __init__(
        self,
        roots: Sequence[CensusRoot],
        objects: list[Any],
        modules: Sequence[Any],
        optimizers: Sequence[Any],
    ) -> None:
        self.naming = Naming(Names())
        self.modules = ModulePaths(self.naming)
        self.optimizers = OptimizerNaming(self.naming)
        self.places: dict[int, str] = {}
        """Address of each other root to its name; names of what it holds begin with that."""
        self.home = ""
        """Class of the only model, whose paths have no prefix; else empty."""
        self.provisional: list[tuple[Any, int]] = []
        """Modules found in the heap, with the node of the name: the class until :meth:`settle`."""
        self._optimizers: list[CensusRoot] = []
        """Given optimizers; they are named after all modules, as they use parameters' names."""
        self.keras = KerasOwners(self.naming, self.modules) if is_in_use() else None
        if self.keras is not None:
            roots = self.keras.add_roots(roots)
        self._add_modules([root for root in roots if issubclass(type(root.item), torch.nn.Module)])
        for root in roots:
            kind = type(root.item)
            if issubclass(kind, torch.optim.Optimizer):
                self._optimizers.append(root)
            elif issubclass(kind, torch.Tensor):
                node = self.naming.names.text(root.name or "tensor")
                self.naming.add(root.item, node, "other")
            elif not issubclass(kind, torch.nn.Module):
                self.places[id(root.item)] = root.name or class_name(root.item)
        if self.keras is not None:
            self.keras.add_found(objects)
            self.optimizers.anchors.update(self.keras.anchors)
            modules = self.keras.without_keras(modules)
        self._add_found(modules, optimizers)
        objects.extend(filter(None, map(instance_dict, optimizers)))

    def _add_modules(self, roots: Sequence[CensusRoot]) -> None:
        is_only = sum(root.name is None for root in roots) == 1
        distinct = DistinctTexts()
        nodes = []
        for root in roots:
            text = root.name if root.name is not None else "" if is_only else model_name(root.item)
            if not text:
                self.home = model_name(root.item)
            nodes.append(self.naming.names.text(distinct.next(text)))
        first = len(self.naming.keeps_second)
        self.modules.add([root.item for root in roots], nodes)
        if self.keras is not None:
            # in a module of torch, the weights of layers have a second name
            for index in range(first, len(self.naming.keeps_second)):
                if id(self.naming.items[index]) in self.keras.values:
                    self.naming.keeps_second[index] = False

    def _add_found(self, modules: Sequence[Any], optimizers: Sequence[Any]) -> None:
        """Name what the heap's other modules, and all optimizers, hold."""
        known, names = self.modules.paths, self.naming.names
        unknown = [item for item in modules if id(item) not in known] if known else list(modules)
        roots = first_seen.ordered(outermost(unknown))
        nodes = [names.open_text(model_name(module)) for module in roots]
        self.modules.add(roots, nodes, keeps_second=False)
        self.provisional.extend(zip(roots, nodes, strict=True))
        self._add_reducers(modules)
        for root in self._optimizers:
            self.optimizers.add(root.item, root.name)
        for optimizer in first_seen.ordered(optimizers):
            self.optimizers.add(optimizer)

    def _add_reducers(self, modules: Sequence[Any]) -> None:
        names = self.naming.names
        for module, index, bucket in reducer_buckets(modules):
            node = names.attribute(self.modules.paths[id(module)], "reducer")
            node = names.index(names.attribute(node, "buckets"), index)
            self.naming.add(bucket, node, "gradient", keeps_second=False)

    def settle(self, node: int, found: int) -> None:
        """Name a module of :attr:`provisional` after the variable that holds it.

        Names below an optimizer leave the function out: ``SGD.net.weight`` where the module's own
        is ``main(): net.weight``. The class stays the name if it is unique and the variable says
        less: a library's variable, ``self`` of a closure or of the module's own method, or a path
        with several private attributes.
        """
        names = self.naming.names
        if self._is_uninformative(found) and self._classes[names[node]] == 1:
            return
        text, begin = names[found], names[names.root(found)]
        is_local = _OF_FUNCTION.match(begin)
        names.settle(node, found, without_function(text) if is_local else text)

    def _is_uninformative(self, found: int) -> bool:
        names = self.naming.names
        begin = names[names.root(found)]
        function = _OF_FUNCTION.match(begin)
        if function is not None and function.group() in self._library_functions:
            return True
        if _OF_CLOSURE_IN_METHOD.fullmatch(begin) or _OF_OWN_METHOD.fullmatch(names[found]):
            return True
        steps = zip(*names.steps(found), strict=True)
        return sum(kind == ATTRIBUTE and text.startswith("._") for kind, text in steps) > 1

    @functools.cached_property
    def _library_functions(self) -> frozenset[str]:
        return library_functions()

    @functools.cached_property
    def _classes(self) -> Counter[str]:
        return Counter(model_name(module) for module, _ in self.provisional)

    def anchor_nodes(self) -> dict[int, int]:
        """Map addresses of modules and optimizers to their nodes.

        Names of other tensors begin there, as at :attr:`places`.
        """
        owners = {**self.modules.paths, **self.optimizers.anchors}
        # these get their names from their own holders
        for module, _ in self.provisional:
            owners.pop(id(module), None)
        return owners

    def path_of(self, module: Any) -> str | None:
        """Return the path of a module, or its class if that is empty; None if it is unknown."""
        node = self.modules.paths.get(id(module))
        return None if node is None else self.naming.names[node] or class_name(module)

    def module_path(self) -> ModulePath:
        """Return a function that maps a module's address and type name to its path."""
        names, paths = self.naming.names, self.modules.paths
        known = {
            id(module): (class_name(module), names[paths[id(module)]])
            for module in self.modules.modules
        }

        def path(address: int, kind: str) -> str | None:
            name, found = known.get(address, (None, ""))
            return (without_function(found) or kind) if name == kind else None

        return path

    def parameter_users(self) -> Users:
        """Map a parameter's address to the modules that have it."""
        names, modules = self.naming.names, self.modules
        users: dict[int, list[tuple[Path, bool]]] = {
            address: [
                (_parts(names[modules.paths[id(each)]]), issubclass(type(each), _EMBEDDINGS))
                for each in several
            ]
            for address, several in modules.users().items()
        }
        if self.keras is not None:
            for address, path in self.keras.of_weights.items():
                if len(users.get(address, ())) < 2:
                    users[address] = [(path, False)]
        return users


def _parts(path: str) -> Path:
    return tuple(filter(None, path.split(".")))


class OptimizerNaming:
    """Names of optimizers' state, and of parameters in no module: ``Adam.fc1.exp_avg``."""

    def __init__(self, naming: Naming) -> None:
        self._naming = naming
        self._distinct = DistinctTexts()
        self.anchors: dict[int, int] = {}
        """Address of an optimizer to the node of its name."""

    def add(self, optimizer: Any, name: str | None = None) -> None:
        """Name what ``optimizer`` holds, below ``name`` or its class's name."""
        content = instance_dict(optimizer)
        if content is None or id(optimizer) in self.anchors:
            return
        text = self._distinct.next(name or class_name(optimizer))
        prefix = self.anchors[id(optimizer)] = self._naming.names.text(text)
        orphans = self._parameters(dict.get(content, "param_groups"), prefix)
        names, copies, first_names = self._naming.names, {-1: prefix}, self._naming.first_nodes()
        for key, state in entries(dict.get(content, "state")):
            if issubclass(type(key), torch.Tensor):
                path = orphans.get(id(key), first_names.get(id(key)))
                node = prefix if path is None else names.below(path, copies)
            else:
                node = names.key(prefix, key)
            self._add_state(state, node)

    def _add_state(self, state: Any, node: int, depth: int = 0) -> None:
        """Name a tensor, or the tensors in a container before those in the containers in it."""
        if issubclass(type(state), torch.Tensor):
            self._naming.add(state, node, "optimizer", keeps_second=False)
        elif depth <= _MAX_DEPTH:
            attribute, other_key = self._naming.names.attribute, self._naming.names.key
            inner = []
            for key, item in entries(state) or _sequence(state):
                if type(item) not in _PLAIN_TYPES:
                    is_attribute = type(key) is str and key.isidentifier()
                    below = (attribute if is_attribute else other_key)(node, key)
                    if issubclass(type(item), torch.Tensor):
                        self._naming.add(item, below, "optimizer", keeps_second=False)
                    else:
                        inner.append((item, below))
            for item, below in reversed(inner):
                self._add_state(item, below, depth + 1)

    def _parameters(self, groups: Any, prefix: int) -> dict[int, int]:
        """Name the parameters that no module has; map their addresses to these names."""
        names, known = self._naming.names, self._naming.first_nodes()
        orphans: dict[int, int] = {}
        root = names.text("param_groups")
        for index, group in _sequence(groups):
            path = names.attribute(names.index(root, index), "params")
            for position, parameter in _sequence(entry(group, "params")):
                if issubclass(type(parameter), torch.Tensor) and id(parameter) not in known:
                    orphans[id(parameter)] = names.index(path, position)
                    below = names.below(orphans[id(parameter)], {-1: prefix})
                    self._naming.add(parameter, below, "parameter")
        return orphans


def _sequence(value: Any) -> Iterator[tuple[Any, Any]]:
    for kind in (list, tuple, deque):
        if issubclass(type(value), kind):
            return enumerate(list(kind.__iter__(value)))
    return iter(())
