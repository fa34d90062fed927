"""A ledger as text: like a balance sheet, each figure indented below what it is a part of."""

from __future__ import annotations

from tensorlens.census.present.balance import (
    LedgerRow,
    balance,
    balance_change,
    unknown,
    unknown_changes,
    unnamed_blocks,
)
from tensorlens.records.differences import LedgerChange
from tensorlens.records.ledger import Ledger
from tensorlens.render.figures import size
from tensorlens.render.text.page import Page, aligned, padded, ruled

_INDENT = 2
_KEPT_TOGETHER = "\xa0"


def ledger_lines(ledger: Ledger, page: Page) -> list[str]:
    """Return the lines of one device's ledger."""
    rows = balance(ledger)
    labels = [" " * (_INDENT * (row.depth + 1)) + row.label for row in rows]
    label_room = max(map(len, labels))
    size_room = max(len(size(row.nbytes)) for row in rows)
    found = []
    for row, label in zip(rows, labels, strict=True):
        start = f"{padded(label, label_room)}  {padded(size(row.nbytes), size_room, right=True)}"
        remark = _remark(row, page)
        lines = page.wrapped(f"{start}   ", remark, len(start) + 3) if remark else [start]
        found += [line.replace(_KEPT_TOGETHER, " ") for line in lines]
        if page.view.explain:
            found += _explained(row, page)
        if row.label == "unnamed":
            found += _blocks(ledger, page, " " * (_INDENT * (row.depth + 2)))
    for reason in unknown({"": ledger}):
        found += page.wrapped("  ", page.shown(reason))
    return found


def ledger_change_lines(change: LedgerChange, page: Page) -> list[str]:
    """Return the lines of what changed in one device's ledger."""
    cells = [["Ledger", "Before", "After", "Change"]]
    for row in balance_change(change):
        sizes = (size(row.before), size(row.after), size(row.change, signed=True))
        cells.append([" " * (_INDENT * row.depth) + row.label, *sizes])
    found = ruled(aligned(cells, (False, True, True, True), 2), page, 2)
    for reason in unknown_changes(change):
        found += page.wrapped("  ", page.shown(reason))
    return found


def _remark(row: LedgerRow, page: Page) -> str:
    parts = [
        f"{page.shown(term.label)} {size(term.nbytes)}".replace(" ", _KEPT_TOGETHER)
        for term in row.parts
    ]
    return ", ".join(filter(None, (*parts, row.remark)))


def _explained(row: LedgerRow, page: Page) -> list[str]:
    indent = " " * (_INDENT * (row.depth + 2))
    texts = [row.explanation] if row.explanation else []
    texts += [f"{term.label}: {term.explanation}" for term in row.parts if term.explanation]
    return [
        line
        for text in texts
        for line in page.wrapped(indent, page.shown(text), len(indent) + _INDENT)
    ]


def _blocks(ledger: Ledger, page: Page, indent: str) -> list[str]:
    texts, rest = unnamed_blocks(ledger, all_=page.view.verbose)
    if len(texts) <= 1 and not page.view.verbose and not any(block.what for block in ledger.blocks):
        # the line of the figure says it all
        return []
    found = []
    for text in texts:
        found += page.wrapped(indent, page.shown(text), len(indent) + _INDENT)
    if rest:
        found.append(f"{indent}{page.glyphs.ellipsis} {rest}")
    return found
