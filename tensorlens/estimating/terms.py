"""Why memory is there that no tensor of the program is."""

from __future__ import annotations

_WHY: dict[str, str] = {}


def why(name: str) -> str:
    """Return the rule behind a name, in one line."""
    return _WHY.get(name, "a kernel takes it for itself while it runs")
