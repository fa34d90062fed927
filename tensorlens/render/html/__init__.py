"""Reports as HTML: a fragment for notebooks, and a page of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorlens.records.comparisons import Comparison
from tensorlens.records.differences import Difference
from tensorlens.records.estimates import Estimate
from tensorlens.records.leaks import LeakReport
from tensorlens.records.plans import Plan
from tensorlens.records.queues import Queue
from tensorlens.records.recordings import Recording
from tensorlens.records.snapshots import Snapshot, View
from tensorlens.records.suggestions import Suggestions
from tensorlens.render.html.comparison import comparison_fragment
from tensorlens.render.html.difference import difference_fragment
from tensorlens.render.html.estimate import estimate_fragment, estimate_page
from tensorlens.render.html.leaks import leak_fragment
from tensorlens.render.html.lines import line_fragment
from tensorlens.render.html.queues import plan_fragment, queue_fragment
from tensorlens.render.html.recording import recording_fragment, recording_page
from tensorlens.render.html.snapshot import snapshot_fragment
from tensorlens.render.html.suggestions import suggestion_fragment
from tensorlens.render.html.templates import environment
from tensorlens.render.html.treemap import treemap

if TYPE_CHECKING:
    from tensorlens.records.loading import Record

_ROWS_OF_A_PAGE = 1000


class HtmlRenderer:
    """One self-contained page: nothing loaded from elsewhere, light and dark.

    A recording's page, and an estimate's, which has its recording on it, have a script of ours,
    with which any instant can be looked at. They and a
    snapshot's have a treemap, and so plotly's script, where plotly is installed.

    Args:
        view: which tensors of a snapshot or a difference are shown, and how fully. None shows
            the 1000 largest of each device. Of a recording, it chooses devices and the instant
            that is shown first.
    """

    extension = "html"

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View(top=_ROWS_OF_A_PAGE)

    def render(self, record: Record) -> str:
        """Return the page as text, to be written as UTF-8."""
        title, after = "memory per line", ""
        if isinstance(record, Recording):
            title = "memory over time"
        elif isinstance(record, Snapshot):
            title, after = "tensors in memory", treemap(record, self.view)
        elif isinstance(record, Difference):
            title = "what changed in memory"
        elif isinstance(record, LeakReport):
            title = "what stays behind"
        elif isinstance(record, Estimate):
            title = "what it will need"
        elif isinstance(record, Queue):
            title = "what the input queue holds"
        elif isinstance(record, Plan):
            title = "what batches take"
        elif isinstance(record, Comparison):
            title = "memory options compared"
        elif isinstance(record, Suggestions):
            title = "what would save most"
        if isinstance(record, Recording):
            body = recording_page(record, self.view)
        elif isinstance(record, Estimate):
            body = estimate_page(record, self.view)
        else:
            body = fragment(record, self.view)
        return environment().get_template("page.html").render(title=title, body=body, after=after)


def fragment(record: Record, view: View | None = None) -> str:
    """Return the record as one ``<div>`` for a notebook cell, without any script.

    Every style is scoped to its class, and it stays readable where styles are taken away.
    """
    view = view or View()
    if isinstance(record, Snapshot):
        return snapshot_fragment(record, view)
    if isinstance(record, Difference):
        return difference_fragment(record, view)
    if isinstance(record, Recording):
        return recording_fragment(record, view)
    if isinstance(record, LeakReport):
        return leak_fragment(record)
    if isinstance(record, Estimate):
        return estimate_fragment(record, view)
    if isinstance(record, Queue):
        return queue_fragment(record)
    if isinstance(record, Plan):
        return plan_fragment(record)
    if isinstance(record, Comparison):
        return comparison_fragment(record)
    if isinstance(record, Suggestions):
        return suggestion_fragment(record)
    return line_fragment(record)
