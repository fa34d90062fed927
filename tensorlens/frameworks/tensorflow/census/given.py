"""The names and roles that variables are given while a census goes on."""

from __future__ import annotations

from typing import Any

from tensorlens.frameworks.tensorflow.census.rows import Rows


class Given:
    """What was given to variables; the first name given to one is its own."""

    def __init__(self, rows: Rows) -> None:
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
