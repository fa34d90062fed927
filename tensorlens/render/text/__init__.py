"""Reports as plain text for a terminal, a log or a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tensorlens.render.blocks import Paragraph
from tensorlens.render.source_lines import permitted, provenance
from tensorlens.render.text.blocks import parts
from tensorlens.render.text.page import Page, output_width
from tensorlens.render.view import View

if TYPE_CHECKING:
    from tensorlens.render.blocks import Block
    from tensorlens.render.shown import Shown

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
            modules; of a line report, all lines of all functions. Leak reports are always shown
            whole.
        tells_run: end with the run that the record is of, as a file does that is read elsewhere.
    """

    extension = "txt"

    def __init__(
        self,
        width: int | None = None,
        encoding: str | None = None,
        view: View | None = None,
        *,
        tells_run: bool = False,
    ) -> None:
        self.width = max(_NARROWEST, output_width() if width is None else width)
        self.encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
        self.view = view or View()
        self.tells_run = tells_run

    def render(self, record: Shown) -> str:
        """Return the record as text that ends in a newline."""
        record = permitted(record)
        blocks = [*record.presenter().blocks(record, self.view)]
        texts = provenance(record) if self.tells_run else ()
        if texts:
            blocks.append(Paragraph("; ".join(texts)))
        return self.render_blocks(blocks)

    def render_blocks(self, blocks: Sequence[Block]) -> str:
        """Return blocks as text that ends in a newline."""
        several = parts(blocks, Page(self.width, self.encoding, self.view))
        text = "\n\n".join(several)
        return text.encode(self.encoding, "backslashreplace").decode(self.encoding) + "\n"
