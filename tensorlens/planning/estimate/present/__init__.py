"""What is shown of an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.planning.estimate.present import report
from tensorlens.planning.estimate.present import report as table
from tensorlens.planning.estimate.present.explanation import paragraphs
from tensorlens.planning.estimate.present.report import estimate_summary
from tensorlens.planning.estimate.result import Estimate
from tensorlens.recording import export
from tensorlens.render.blocks import Block, Rows
from tensorlens.render.view import View


def title(estimate: Estimate) -> str:
    """Return the title of a page."""
    return "what it will need"


def blocks(estimate: Estimate, view: View) -> Sequence[Block]:
    """Return whether it fits, its peak and what that consists of."""
    return report.report(estimate, view)


def rows(estimate: Estimate) -> Rows:
    """Return one row per figure."""
    return Rows(table.COLUMNS, table.rows(estimate), table.TEXT)


def exported(estimate: Estimate, ending: str) -> str | bytes:
    """Return the content of a file that keeps recordings alone: its own."""
    return export.exported(estimate.recording, ending)


def summary(estimate: Estimate) -> dict[str, Any]:
    """Return what it tells as plain data."""
    return estimate_summary(estimate)


def explanation(estimate: Estimate) -> Sequence[Block]:
    """Return the answer in words and figures: what takes how much, and why."""
    return list(paragraphs(estimate))


def cards(estimates: Sequence[Estimate]) -> Sequence[Block]:
    """Return one table of the same program on several cards."""
    return report.cards(estimates)
