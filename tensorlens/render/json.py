"""Reports as JSON: what reads back equal."""

from __future__ import annotations

from typing import Any


class JsonRenderer:
    """Writes what :func:`tensorlens.loading.parse` reads back equal.

    Of a recording and of an estimate that is what they tell, for other programs, and their events
    packed, which nothing but tensorlens reads.
    """

    extension = "json"

    def render(self, record: Any) -> str:
        """Return the record as JSON text with a newline at the end."""
        return f"{record.to_json()}\n"
