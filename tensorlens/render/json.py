"""Reports as JSON, the form that reads back equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorlens.records.lines import LineReport


class JsonRenderer:
    """Writes what :meth:`LineReport.from_json` reads back equal."""

    extension = "json"

    def render(self, report: LineReport) -> str:
        """Return the report as JSON text with a newline at the end."""
        return report.to_json() + "\n"
