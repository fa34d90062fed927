"""Presents a line report."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.lines.present import columns as table
from tensorlens.lines.present.function_tables import report as line_blocks
from tensorlens.lines.report import LineReport
from tensorlens.render.blocks import Block, Rows
from tensorlens.render.view import View


def title(report: LineReport) -> str:
    """Return the title of a page."""
    return "memory per line"


def blocks(report: LineReport, view: View) -> Sequence[Block]:
    """Return the lines that matter, and the table of each function."""
    return line_blocks(report, view)


def rows(report: LineReport) -> Rows:
    """Return one row per function, line and device."""
    return Rows(table.columns(report), table.rows(report), table.TEXT)
