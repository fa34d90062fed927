"""Reports as JSON: what reads back equal; of recordings and estimates what they tell."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tensorlens.records.estimates import Estimate
from tensorlens.records.recordings import Recording
from tensorlens.render.estimate_summary import estimate_summary
from tensorlens.render.summary import summary

if TYPE_CHECKING:
    from tensorlens.records.loading import Record


class JsonRenderer:
    """Writes what :func:`tensorlens.records.loading.parse` reads back equal.

    Of a recording it writes :func:`tensorlens.render.summary.summary`, which does not read back:
    a ``.tlens`` file keeps every event. Of an estimate it writes
    :func:`tensorlens.render.estimate_summary.estimate_summary`, which does not either.
    """

    extension = "json"

    def render(self, record: Record) -> str:
        """Return the record as JSON text with a newline at the end."""
        if isinstance(record, Recording):
            return json.dumps(summary(record), separators=(",", ":")) + "\n"
        if isinstance(record, Estimate):
            return json.dumps(estimate_summary(record), separators=(",", ":")) + "\n"
        return record.to_json() + "\n"
