"""The one place where a ledger's remainders are worked out: none of its terms is ever negative.

Figures come from several readings, between which threads allocate and free, and each counts in its
own way: memory that was never touched is allocated and not resident. Where a part reads larger than
its whole, the remainder is not known, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tensorlens.records.ledger import BALANCE, Ledger

_REASONS = {
    "unnamed": "the tensors have more bytes than the allocator has handed out: some are not its "
    "own, or were freed meanwhile",
    "cached": "the allocator tells more bytes handed out than it holds",
    "other": "the driver tells less in use than the allocator holds: it was given back meanwhile, "
    "or is managed memory that is not on the device now",
}
_MOVED = "it changed while it was read"


def balanced(ledger: Ledger, reasons: Mapping[str, str] = {}) -> Ledger:
    """Return the ledger with ``unnamed``, ``cached`` and ``other`` worked out.

    Args:
        ledger: all its other figures, and why those are unknown that are None. A part of it that
            came out negative becomes unknown.
        reasons: remainder to the reason why a part may read larger than its whole, where it is not
            that of an accelerator.
    """
    missing = dict(ledger.missing)
    remainders: dict[str, Any] = {}
    for whole, (part, remainder) in BALANCE:
        figures = {name: getattr(ledger, name) for name in (whole, part)}
        unknown = next((name for name, figure in figures.items() if figure is None), None)
        remainders[remainder] = difference(*figures.values())
        if unknown is not None:
            missing.setdefault(remainder, missing.get(unknown, f"{unknown} is not known"))
        elif remainders[remainder] is None:
            missing[remainder] = {**_REASONS, **reasons}[remainder]
    parts = []
    for term in ledger.parts:
        if term.nbytes is not None and term.nbytes < 0:
            missing.setdefault(term.key, _MOVED)
            term = replace(term, nbytes=None)
        parts.append(term)
    return replace(ledger, parts=tuple(parts), missing=missing, **remainders)


def difference(whole: int | None, part: int | None) -> int | None:
    """Return what is left of a figure without a part of it; None where that is not known."""
    return None if whole is None or part is None or part > whole else whole - part
