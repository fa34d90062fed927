"""Lays a ledger out as a tree in which the parts of each figure add up to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorlens.records.ledger import FIGURES, Block, Ledger, Term
from tensorlens.render.figures import counted, size
from tensorlens.render.source import place, printable
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


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One figure of a ledger."""

    depth: int
    """How many figures it is a part of."""
    label: str
    nbytes: int | None
    parts: tuple[Term, ...]
    """Known parts of it; they need not add up to it."""
    remark: str
    explanation: str


@dataclass(frozen=True, slots=True)
class LedgerChangeRow:
    """One figure of a ledger before and after."""

    depth: int
    label: str
    before: int | None
    after: int | None
    change: int | None


def balance(ledger: Ledger) -> tuple[LedgerRow, ...]:
    """Return the figures of a ledger, each after the one that it is a part of."""
    found = []
    remarks = {"unnamed": _unnamed(ledger)}
    if ledger.device.rpartition("/")[2] == "cpu":
        remarks |= _OF_THE_HOST
    for field, depth, label in _TREE:
        if field == "free":
            nbytes = _free(ledger)
            if nbytes is None:
                continue
        else:
            nbytes = getattr(ledger, field)
        found.append(
            LedgerRow(
                depth=depth,
                label=label,
                nbytes=nbytes,
                parts=tuple(term for term in ledger.parts if term.of == field),
                remark=remarks.get(field, ""),
                explanation=_FREE if field == "free" else ledger.explanations.get(field, ""),
            )
        )
    return tuple(found)


def balance_change(change: LedgerChange) -> tuple[LedgerChangeRow, ...]:
    """Return the figures of two ledgers side by side."""
    return tuple(
        LedgerChangeRow(
            depth,
            label,
            getattr(change.before, field) if change.before else None,
            getattr(change.after, field) if change.after else None,
            change.change(field),
        )
        for field, depth, label in _TREE
        if field != "free"
    )


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
        for term in ledger.parts:
            if term.nbytes is None:
                reason = ledger.missing.get(term.key) or term.explanation or "no reason was given"
                reasons.setdefault(printable(reason), []).append(printable(term.label))
        found += [f"n/a: {when}{', '.join(names)}: {why}" for why, names in reasons.items()]
    return tuple(found)


def unknown_changes(change: LedgerChange) -> tuple[str, ...]:
    """Return why figures of two ledgers could not be had, told once where both lack the same."""
    before, after = unknown({"": change.before}), unknown({"": change.after})
    if before == after:
        return before
    return unknown({"before: ": change.before, "after: ": change.after})


def unnamed_blocks(ledger: Ledger, *, all_: bool) -> tuple[tuple[str, ...], str]:
    """Return the largest unnamed blocks, a text for those alike, and a text for the others.

    Args:
        ledger: whose blocks.
        all_: every block the ledger knows, with address and stack; else the largest few.
    """
    groups: dict[object, list[Block]] = {}
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
    count = ledger.block_count - sum(map(len, shown))
    if count <= 0:
        return tuple(texts), ""
    told = sum(block.nbytes for group in shown for block in group)
    rest = "" if ledger.unnamed is None else f", {size(ledger.unnamed - told)}"
    return tuple(texts), f"and {count:,} more{rest}"


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
