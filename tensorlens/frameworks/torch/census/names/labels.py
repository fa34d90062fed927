"""Names of tensors that autograd's nodes saved or made, with the module of each node."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorlens.frameworks.torch.census.graph import (
    LEAF,
    Graph,
    Saved,
    connected,
    nodes_below,
)
from tensorlens.frameworks.torch.census.names.keras import joined
from tensorlens.records.names import common_path

Path = tuple[str, ...]
"""The parts of a module's path."""
Users = Mapping[int, Sequence[tuple[Path, bool]]]
"""Address of a parameter to the paths of the modules that have it, and whether each embeds."""


def _backward_classes(*names: str) -> frozenset[str]:
    return frozenset(f"{name}Backward0" for name in names)


_WHOLE = _backward_classes("T", "Transpose", "Permute", "View", "Unsqueeze", "Expand")
_TRANSPARENT = _WHOLE | _backward_classes("ToCopy")
"""Nodes between a parameter and its use: a linear layer's transpose, autocast's copy."""
_MAX_TRANSPARENT = 3
"""Maximum number of them in a row."""
_PARTING = _backward_classes(
    *("Split", "SplitWithSizes", "UnsafeSplit", "Unbind", "Select", "Slice", "AsStrided")
)
"""Nodes whose result is a part of their input, in the same storage."""
_VIEWS = _PARTING | _WHOLE | _backward_classes("UnsafeView", "Squeeze")


def path_of_user(users: Users, address: int, node: Any) -> Path:
    """Return the path of the module in which a node uses the parameter at an address.

    If several have it (tied weights), a node that looks rows up belongs to an embedding, any other
    to the rest. Of several that are left it is the innermost module that contains them all.
    """
    looks_up = type(node).__name__.startswith("Embedding")
    alike = [path for path, is_embedding in users[address] if is_embedding == looks_up]
    return functools.reduce(common_path, alike or [path for path, _ in users[address]])


class Labels:
    """Names for what autograd holds: ``layer.0.mlp: GeluBackward0.self``.

    The module of a node is inferred. A node that uses a parameter belongs to the module of the
    parameter: it leads to the parameter's leaf, or saved it (a frozen one). Any other node lies
    between two of these in the order of the forward pass, and belongs to the innermost module
    that contains both. Nodes before the first and after the last of them, such as the loss, have
    no known module.
    """

    def __init__(
        self,
        graph: Graph,
        users: Users,
        savers: Mapping[Any, Path],
        home: str,
        path_of: Callable[[Any], str | None],
    ) -> None:
        """Infer the modules of a graph's nodes.

        Args:
            graph: the nodes.
            users: modules by the address of a parameter.
            savers: node that saved a parameter to the path of the parameter's module.
            home: class of the only model, or empty.
            path_of: returns a module's path, or None.
        """
        self._paths: dict[Any, Path] = {}
        self._users, self._home, self._path_of = users, home, path_of
        leaves = {node: id(leaf) for node, leaf in graph.leaves.items() if id(leaf) in users}
        if not leaves and not savers:
            return
        for part in connected(graph.nodes):
            order = sorted(part, key=lambda node: node._sequence_nr())
            own = {
                node: path
                for node in order
                if (path := self._path_by_parameters(node, leaves, savers)) is not None
            }
            self._infer_between(order, own)

    def _infer_between(self, order: list[Any], own: dict[Any, Path]) -> None:
        following: Path | None = None
        after: dict[Any, Path | None] = {}
        for node in reversed(order):
            after[node] = following
            following = own.get(node, following)
        before: Path | None = None
        for node in order:
            mine = own.get(node)
            behind = after[node]
            if mine is not None:
                before = self._paths[node] = mine
            elif before is not None and behind is not None:
                self._paths[node] = _path_between(before, behind)

    def _path_by_parameters(
        self, node: Any, leaves: Mapping[Any, int], savers: Mapping[Any, Path]
    ) -> Path | None:
        """Return the innermost module that has all parameters of the node, None if it has none."""
        own = savers.get(node)
        for below, _ in node.next_functions:
            for _ in range(_MAX_TRANSPARENT):
                if type(below).__name__ not in _TRANSPARENT:
                    break
                below = below.next_functions[0][0]
            if below is not None and below in leaves:
                # a compiled function uses parameters of many modules
                path = path_of_user(self._users, leaves[below], node)
                own = path if own is None else common_path(own, path)
        return own

    def module(self, *nodes: Any) -> str | None:
        """Return the path of the innermost module that contains nodes, or None."""
        paths = [path for node in nodes if (path := self._paths.get(node)) is not None]
        if not paths:
            return None
        common: Path = functools.reduce(common_path, paths)
        return joined(common) or self._home or None

    def node_of_storage(self, several: Sequence[Saved]) -> Any:
        """Return the node that made a storage whose parts others saved, or None.

        An attention's query, key and value may be parts of one projection's result.
        """
        if any(saved.is_result() or saved.region is not None for saved in several):
            return None
        bases = [_bases(node) for node in dict.fromkeys(saved.node for saved in several)]
        common = set.intersection(*bases)
        return common.pop() if len(common) == 1 else None

    def made_by(self, node: Any, argument: str = "") -> str:
        """Return the name of a node's result, or with ``.self`` of that argument."""
        return _labelled(self.module(node), f"{type(node).__name__}{argument}")

    def saved_name(self, saved: Saved) -> str:
        """Return the name of a saved tensor."""
        region = saved.region
        if region is None:
            return self.made_by(saved.node, f".{saved.argument}")
        path = None if region.module is None else self._path_of(region.module)
        return _labelled(path or self.module(*region.nodes), saved.argument)


def _labelled(path: str | None, text: str) -> str:
    return text if path is None else f"{path}: {text}"


def _bases(node: Any) -> set[Any]:
    """Return the nodes of whose results a node uses parts."""
    found = set()
    for below in nodes_below(node):
        is_part = False
        while below is not None and type(below).__name__ in _VIEWS:
            is_part = is_part or type(below).__name__ in _PARTING
            below = next(iter(nodes_below(below)), None)
        if is_part and below is not None and type(below).__name__ != LEAF:
            found.add(below)
    return found


def _path_between(before: Path, after: Path) -> Path:
    """Return the path for a node between the nodes of two modules.

    Between ``h.0.fc`` and ``h.1.fc`` it is ``h.0``, as the end of a layer is saved more often than
    the beginning. Between 0 and 2 of a ``Sequential`` it is 1, between 0 and 4 ``1-3``.
    """
    common = common_path(before, after)
    length = len(common)
    numbers = [path[length] for path in (before, after) if len(path) > length]
    if len(numbers) < 2 or not all(map(str.isdecimal, numbers)):
        return common
    first, last = map(int, numbers)
    if last - first < 2:
        return (*common, numbers[0]) if first < last else common
    # without the two modules themselves, if they have the parameters
    first, last = first + (len(before) == length + 1), last - (len(after) == length + 1)
    return *common, f"{first}" if first == last else f"{first}-{last}"
