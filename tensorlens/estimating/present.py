"""What is shown of an estimate."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.estimates import Estimate
from tensorlens.records.snapshots import View
from tensorlens.render.blocks import Block, Custom, Rows
from tensorlens.render.html.estimate import estimate_fragment, estimate_page
from tensorlens.render.table import estimates
from tensorlens.render.text.estimate import estimate_parts


def title(estimate: Estimate) -> str:
    """Return the title of a page."""
    return "what it will need"


def blocks(estimate: Estimate, view: View) -> Sequence[Block]:
    """Return whether it fits, its peak and what that consists of."""
    return [
        Custom(
            lambda page: estimate_parts(estimate, page),
            lambda: estimate_fragment(estimate, view),
            lambda: estimate_page(estimate, view),
        )
    ]


def rows(estimate: Estimate) -> Rows:
    """Return one row per figure."""
    return Rows(estimates.COLUMNS, estimates.rows(estimate), estimates.TEXT)
