"""Lays a ledger out as a tree in which the parts of each figure add up to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorlens.records.ledger import FIGURES, Ledger, UnnamedBlock
from tensorlens.render.blocks import NO_BREAK, Cell, Column, Note, Row, Section, Table
from tensorlens.render.cells import size_cell
from tensorlens.render.figures import counted, size
from tensorlens.render.source import place, printable
from tensorlens.render.view import View
from tensorlens.tensors.difference import LedgerChange

_TREE = (
    ("driver_total", 0, "driver total"),
    ("free", 1, "free"),
    ("driver_used", 1, "in use"),
    ("other", 2, "other"),
    ("reserved", 2, "reserved"),
    ("cached", 3, "cached"),
    ("allocated", 3, "allocated"),
    ("named", 4, "named"),
    ("unnamed", 4, "unnamed"),
)
_OF_THE_HOST = {
    "other": "other processes and the kernel",
    "reserved": "the process's resident set",
}
_FREE = "What the driver has not handed out to anyone: driver total less in use."
_BLOCKS = 5


def ledger_table(ledger: Ledger, view: View) -> Section:
    """Return a device's ledger: like a balance sheet, each figure below what it is a part of."""
    figures = {name: getattr(ledger, name) for name in FIGURES} | {"free": _free(ledger)}
    whole = max(max(nbytes or 0, 0) for nbytes in figures.values())
    remarks = {"unnamed": _unnamed(ledger)}
    if ledger.device.rpartition("/")[2] == "cpu":
        remarks |= _OF_THE_HOST
    explanations = {**ledger.explanations, "free": _FREE}
    rows = []
    for figure, depth, label in _TREE:
        if figure == "free" and figures[figure] is None:
            continue
        parts = [part for part in ledger.parts if part.of == figure]
        explained = [f"{each.label}: {each.explanation}" for each in parts if each.explanation]
        # no part is torn from its size
        texts = [
            f"{printable(each.label)} {size(each.nbytes)}".replace(" ", NO_BREAK) for each in parts
        ]
        explanation = explanations.get(figure, "")
        details = [*filter(None, (explanation, *explained))] if view.explain else []
        if figure == "unnamed":
            details += _unnamed_blocks(ledger, view)
        cells = (
            Cell(label, depth=depth, tip=explanation),
            size_cell(figures[figure], whole),
            Cell(", ".join(filter(None, (*texts, remarks.get(figure)))), tip="; ".join(explained)),
        )
        rows.append(Row(cells, tuple(details)))
    columns = (Column("Ledger", "text"), Column("Size"), Column("", "prose"))
    return _with_reasons(Table(columns, tuple(rows)), unknown({"": ledger}))


def ledger_changes(change: LedgerChange) -> Section:
    """Return what changed in a device's ledger."""
    columns = (Column("Ledger", "text"), Column("Before"), Column("After"), Column("Change"))
    rows = tuple(
        Row(
            (
                Cell(label, depth=depth),
                *(size(getattr(each, figure, None)) for each in (change.before, change.after)),
                size(change.change(figure), signed=True),
            )
        )
        for figure, depth, label in _TREE
        if figure != "free"
    )
    before, after = unknown({"": change.before}), unknown({"": change.after})
    both = {"before: ": change.before, "after: ": change.after}
    return _with_reasons(Table(columns, rows), before if before == after else unknown(both))


def _with_reasons(table: Table, reasons: Sequence[str]) -> Section:
    return Section((table, *(Note(each, "soft") for each in reasons)))


def unknown(ledgers: Mapping[str, Ledger | None]) -> tuple[str, ...]:
    """Return why each figure that reads ``n/a`` could not be had, equal reasons together.

    Args:
        ledgers: a text to put in front (``before: ``) to a ledger, None where there is none.
    """
    labels = {field: label for field, _, label in _TREE}
    found = []
    for when, ledger in ledgers.items():
        if ledger is None:
            found.append(f"n/a: {when}this device was not looked at")
            continue
        reasons: dict[str, list[str]] = {}
        for field in FIGURES:
            if getattr(ledger, field) is None:
                reason = printable(ledger.missing.get(field, "no reason was given"))
                reasons.setdefault(reason, []).append(labels[field])
        for part in ledger.parts:
            if part.nbytes is None:
                reason = ledger.missing.get(part.key) or part.explanation or "no reason was given"
                reasons.setdefault(printable(reason), []).append(printable(part.label))
        found += [f"n/a: {when}{', '.join(names)}: {why}" for why, names in reasons.items()]
    return tuple(found)


def _unnamed_blocks(ledger: Ledger, view: View) -> list[str]:
    """Return the largest unnamed blocks, a text for those alike, and a text for the others.

    A verbose view has every block that the ledger knows, with address and stack.
    """
    all_ = view.verbose
    groups: dict[object, list[UnnamedBlock]] = {}
    for place_of, block in enumerate(sorted(ledger.blocks, key=lambda block: -block.nbytes)):
        groups.setdefault(place_of if all_ else (block.what, block.born), []).append(block)
    shown = sorted(groups.values(), key=lambda group: -sum(block.nbytes for block in group))
    shown = shown if all_ else shown[:_BLOCKS]
    texts = []
    for group in shown:
        block = group[0]
        what = printable(block.what) if block.what else ""
        born = f"born at {place(block.born, function=True)}" if block.born else ""
        address = f"at {block.address:#x}" if all_ and block.address else ""
        stack = " < ".join(place(line, function=True) for line in block.stack) if all_ else ""
        above = f"called from {stack}" if stack else ""
        known = "  ".join(filter(None, (what, born, above, address)))
        many = f" in {len(group):,} blocks" if len(group) > 1 else ""
        nothing = f"nothing is known of {'them' if many else 'it'}"
        texts.append(f"{size(sum(each.nbytes for each in group))}{many}  {known or nothing}")
    if len(texts) < 2 and not all_ and not any(block.what for block in ledger.blocks):
        # of one block the line of the figure says it all
        return []
    count = ledger.block_count - sum(map(len, shown))
    if count > 0:
        told = sum(block.nbytes for group in shown for block in group)
        rest = "" if ledger.unnamed is None else f", {size(ledger.unnamed - told)}"
        texts.append(f"and {count:,} more{rest}")
    return texts


def _free(ledger: Ledger) -> int | None:
    if ledger.driver_total is None or ledger.driver_used is None:
        return None
    # Metal may give more than it recommends
    return max(0, ledger.driver_total - ledger.driver_used)


def _unnamed(ledger: Ledger) -> str:
    count = max(ledger.block_count, len(ledger.blocks))
    if not count:
        return ""
    text = counted(count, "block")
    if not ledger.blocks:
        return text
    largest = max(ledger.blocks, key=lambda block: block.nbytes)
    born = f" born at {place(largest.born)}" if largest.born else ""
    return f"{text}, largest {size(largest.nbytes)}{born}"
