"""Reports as HTML: a fragment for notebooks, and a page of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorlens.render.html.blocks import markup
from tensorlens.render.html.templates import environment
from tensorlens.render.source_lines import permitted, provenance
from tensorlens.render.view import View

if TYPE_CHECKING:
    from tensorlens.render.shown import Shown

_ROWS_OF_A_PAGE = 500


class HtmlRenderer:
    """One self-contained page: nothing loaded from elsewhere, light and dark.

    A recording's page, and an estimate's, which has its recording on it, have a script of ours,
    with which any instant can be looked at; so have long tables, to sort and filter them.

    Args:
        view: which tensors of a snapshot or a difference are shown, and how fully. None shows
            the 500 largest of each device. Of a recording, it chooses devices and the instant
            that is shown first.
    """

    extension = "html"

    def __init__(self, view: View | None = None) -> None:
        self.view = view or View(top=_ROWS_OF_A_PAGE)

    def render(self, record: Shown) -> str:
        """Return the page as text, to be written as UTF-8."""
        record = permitted(record)
        own = record.presenter()
        body = markup(own.blocks(record, self.view), "page")
        template = environment().get_template("page.html")
        return template.render(title=own.TITLE, body=body, run=provenance(record))


def fragment(record: Shown) -> str:
    """Return the record as one ``<div>`` for a notebook cell, without any script.

    Every style is scoped to its class, and it stays readable where styles are taken away.
    """
    record = permitted(record)
    return markup(record.presenter().blocks(record, View()), "cell")
