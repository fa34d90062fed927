"""Reports as plain text for a terminal, a log or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tensorlens.records.estimates import Estimate
from tensorlens.records.failures import OutOfMemory
from tensorlens.records.snapshots import View
from tensorlens.render.presenters import presenter
from tensorlens.render.text.blocks import parts
from tensorlens.render.text.estimate import card_parts
from tensorlens.render.text.explanation import explanation_parts
from tensorlens.render.text.failure import failure_parts
from tensorlens.render.text.page import Page, output_width

if TYPE_CHECKING:
    from tensorlens.records.loading import Record

_NARROWEST = 40


class TextRenderer:
    """Tables of at most ``width`` characters, for every kind of record.

    Args:
        width: characters a line may take. None takes the terminal's width where standard output
            is a terminal, else 120. Where a column has to give way, the text names it.
        encoding: what the text will be written in; what it cannot hold is spelt in ASCII. None
            takes that of standard output.
        view: which tensors of a snapshot, a difference or a recording are shown, and how fully.
            None shows the largest of each device. Of an estimate, ``top=None`` shows all lines and
            modules. Line and leak reports are always shown whole.
    """

    extension = "txt"

    def __init__(
        self, width: int | None = None, encoding: str | None = None, view: View | None = None
    ) -> None:
        self.width = max(_NARROWEST, output_width() if width is None else width)
        self.encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
        self.view = view or View()

    def render(self, record: Record) -> str:
        """Return the record as text that ends in a newline."""
        page = Page(self.width, self.encoding, self.view)
        return self._joined(parts(presenter(record).blocks(record, self.view), page))

    def render_failure(self, failure: OutOfMemory) -> str:
        """Return the explanation of a failed allocation as text that ends in a newline."""
        view = self.view if self.view.devices else replace(self.view, **_shown_of(failure))
        return self._joined(failure_parts(failure, Page(self.width, self.encoding, view)))

    def render_explanation(self, estimate: Estimate) -> str:
        """Return an estimate in words and figures, as text that ends in a newline."""
        return self._joined(explanation_parts(estimate, Page(self.width, self.encoding, self.view)))

    def render_cards(self, estimates: Sequence[Estimate]) -> str:
        """Return one table of the same program on several cards, ending in a newline."""
        return self._joined(card_parts(estimates, Page(self.width, self.encoding, self.view)))

    def _joined(self, several: Sequence[str]) -> str:
        text = "\n\n".join(part for part in several if part)
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding) + "\n"


def explain(estimate: Estimate) -> str:
    """Return an estimate in words and figures, as wide as the terminal."""
    return TextRenderer().render_explanation(estimate)


def _shown_of(failure: OutOfMemory) -> dict[str, Any]:
    """Return what of the snapshot is shown by default: the request's device, the largest ten."""
    device = failure.request.device
    devices = (device,) if device in failure.snapshot.ledger else ()
    return {"devices": devices, "top": 10}
