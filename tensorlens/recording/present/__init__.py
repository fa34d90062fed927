"""Presents a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.recording import export
from tensorlens.recording.present import columns as table
from tensorlens.recording.present.report import report
from tensorlens.recording.present.summary import summary as summary_data
from tensorlens.recording.recordings import Recording
from tensorlens.render.blocks import Block, Rows
from tensorlens.render.view import View


def title(recording: Recording) -> str:
    """Return the title of a page."""
    return "memory over time"


def blocks(recording: Recording, view: View) -> Sequence[Block]:
    """Return what was resident at the peak, and how it came to it; a page can show any instant."""
    return report(recording, view)


def rows(recording: Recording) -> Rows:
    """Return one row per event."""
    return Rows(table.COLUMNS, table.rows(recording), table.TEXT, (), ("address",))


def exported(recording: Recording, ending: str) -> str | bytes:
    """Return the content of a file that keeps recordings alone."""
    return export.exported(recording, ending)


def summary(recording: Recording) -> dict[str, Any]:
    """Return what it tells as plain data."""
    return summary_data(recording)
