"""What is shown of an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlens.estimating.present import columns as table
from tensorlens.estimating.present.explanation import explanation_parts
from tensorlens.estimating.present.html import estimate_fragment, estimate_page
from tensorlens.estimating.present.summary import estimate_summary
from tensorlens.estimating.present.text import card_parts, estimate_parts
from tensorlens.records.estimates import Estimate
from tensorlens.records.snapshots import View
from tensorlens.render.blocks import Block, Custom, Rows


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
    return Rows(table.COLUMNS, table.rows(estimate), table.TEXT)


def summary(estimate: Estimate) -> dict[str, Any]:
    """Return what it tells as plain data."""
    return estimate_summary(estimate)


def explanation(estimate: Estimate) -> Sequence[Block]:
    """Return the answer in words and figures: what takes how much, and why."""
    return [Custom(lambda page: explanation_parts(estimate, page))]


def cards(estimates: Sequence[Estimate]) -> Sequence[Block]:
    """Return one table of the same program on several cards."""
    return [Custom(lambda page: card_parts(estimates, page))]
