"""Where the names of what an optimizer holds begin: ``Adam``, and ``Adam#2`` for the next one."""

from __future__ import annotations

from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.layers import Give
from tensorlens.records.names import Names


class OptimizerAnchors:
    """Gives each optimizer a name of its own.

    Args:
        names: takes the names.
        give: is told the node and the role of each variable.
    """

    def __init__(self, names: Names, give: Give) -> None:
        self._names, self._give = names, give
        self._used: dict[str, int] = {}
        self.anchors: dict[int, int] = {}
        """``id()`` of an optimizer to the node of its name."""

    def _anchor(self, optimizer: Any, name: str | None) -> int | None:
        """Return the node of an optimizer's new name; None for one that has a name already."""
        if id(optimizer) in self.anchors:
            return None
        text = name or kinds.class_name(optimizer)
        count = self._used[text] = self._used.get(text, 0) + 1
        node = self._names.text(text if count == 1 else f"{text}#{count}")
        self.anchors[id(optimizer)] = node
        return node
