"""The names and roles that variables are given while a census goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tensorlens.frameworks.tensorflow.census.found_rows import FoundRow


class RowsByObject(Protocol):
    """The rows of a census, and which one stands for which object."""

    @property
    def all(self) -> Sequence[FoundRow[Any]]:
        """The rows."""

    @property
    def of(self) -> Mapping[int, int]:
        """``id()`` of a tensor or variable to its row."""


class Given:
    """What was given to variables; the first name given to one is its own."""

    def __init__(self, rows: RowsByObject) -> None:
        self._rows = rows
        self._nodes: dict[int, int] = {}
        self._roles: dict[int, str] = {}

    def give(self, item: Any, node: int, role: str) -> None:
        """Name a variable, if it has no name yet."""
        self._nodes.setdefault(id(item), node)
        self._roles.setdefault(id(item), role)
        place = self._rows.of.get(id(item))
        if place is not None and self._rows.all[place].name < 0:
            self._rows.all[place].name, self._rows.all[place].role = node, role

    def node_of(self, item: Any) -> int | None:
        """Return the name that a variable has been given, or None."""
        return self._nodes.get(id(item))

    def role_of(self, item: Any) -> str | None:
        """Return the role that a variable has been given, or None."""
        return self._roles.get(id(item))
