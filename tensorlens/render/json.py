"""Reports as JSON: the form that reads back equal, and of a recording what it tells."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tensorlens.records.recordings import Recording
from tensorlens.render.summary import summary

if TYPE_CHECKING:
    from tensorlens.records.loading import Record


class JsonRenderer:
    """Writes what :func:`tensorlens.records.loading.parse` reads back equal.

    Of a recording it writes :func:`tensorlens.render.summary.summary`, which does not read back:
    a ``.tlens`` file keeps every event.
    """

    extension = "json"

    def render(self, record: Record) -> str:
        """Return the record as JSON text with a newline at the end."""
        if isinstance(record, Recording):
            return json.dumps(summary(record), separators=(",", ":")) + "\n"
        return record.to_json() + "\n"
