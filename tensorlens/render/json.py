"""Reports as JSON, the form that reads back equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.loading import Record


class JsonRenderer:
    """Writes what :func:`tensorlens.records.loading.parse` reads back equal."""

    extension = "json"

    def render(self, record: Record) -> str:
        """Return the record as JSON text with a newline at the end."""
        return record.to_json() + "\n"
