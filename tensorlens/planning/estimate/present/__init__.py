"""Presents an estimate."""

from __future__ import annotations

from tensorlens.planning.estimate.present.explanation import explanation
from tensorlens.planning.estimate.present.report import blocks, cards, rows, summary
from tensorlens.planning.estimate.result import Estimate
from tensorlens.recording import export

__all__ = ["TITLE", "blocks", "cards", "explanation", "exported", "rows", "summary"]

TITLE = "memory estimate"


def exported(estimate: Estimate, ending: str) -> str | bytes:
    """Return the content of a file that keeps recordings alone: its own."""
    return export.exported(estimate.recording, ending)
