"""Where the names of what an optimizer holds begin: ``Adam``.

Of several of a class each is called as the model's attribute or the script's variable that has it,
``d_optimizer`` and ``g_optimizer``; else they are ``Adam`` and ``Adam#2``.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.keras.layers import Give
from tensorlens.records.names import Names

_PLAIN = "optimizer"
"""What Keras itself calls the one of each model."""


class OptimizerAnchors:
    """Gives each optimizer a name of its own.

    Args:
        names: takes the names.
        give: is told the node and the role of each variable.
    """

    def __init__(self, names: Names, give: Give) -> None:
        self._names, self._give = names, give
        self._used: dict[str, int] = {}
        self._called: dict[int, str] = {}
        self.anchors: dict[int, int] = {}
        """``id()`` of an optimizer to the node of its name."""

    def call(self, optimizers: Sequence[Any], holders: Iterable[Any]) -> None:
        """Note how the program calls each optimizer that is not the only one of its class.

        Args:
            optimizers: all there are.
            holders: models, whose attributes may be optimizers.
        """
        count = Counter(map(kinds.class_name, optimizers))
        wanted = {id(each) for each in optimizers if count[kinds.class_name(each)] > 1}
        if wanted:
            for name, value in _names(holders):
                if id(value) in wanted and name.strip("_") != _PLAIN:
                    self._called.setdefault(id(value), name)

    def _anchor(self, optimizer: Any, name: str | None) -> int | None:
        """Return the node of an optimizer's new name; None for one that has a name already."""
        if id(optimizer) in self.anchors:
            return None
        text = name or self._called.get(id(optimizer)) or kinds.class_name(optimizer)
        count = self._used[text] = self._used.get(text, 0) + 1
        node = self._names.text(text if count == 1 else f"{text}#{count}")
        self.anchors[id(optimizer)] = node
        return node


def _names(holders: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for holder in holders:
        yield from kinds.content_of(holder).items()
    main = getattr(sys.modules.get("__main__"), "__dict__", {})
    yield from ((name, value) for name, value in dict.copy(main).items() if type(name) is str)
