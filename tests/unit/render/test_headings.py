"""Headings of a page: one of the first level, and none that skips a level."""

import itertools
import re

import pytest
import rendered_estimates as estimates
import rendered_leaks as leaks
import rendered_recordings as recordings
import rendered_reports as reports
import rendered_snapshots as snapshots

from tensorlens.render import html_page

KINDS = {
    f"{module.__name__.removeprefix('rendered_')}-{kind}": make
    for module in (estimates, leaks, recordings, reports, snapshots)
    for kind, make in module.KINDS.items()
}


@pytest.mark.parametrize("kind", KINDS)
def test_headings_skip_no_level(kind: str) -> None:
    make = KINDS[kind]
    page = html_page(make() if callable(make) else make)
    levels = [*map(int, re.findall(r"<h([1-6])\b", page))]
    assert levels[:1] == [1] and levels.count(1) == 1
    assert all(later - earlier <= 1 for earlier, later in itertools.pairwise(levels))
