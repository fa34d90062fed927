"""The one place where a ledger's remainders are worked out: none of its terms is ever negative.

Figures come from several readings, between which threads allocate and free, and each counts in its
own way: memory that was never touched is allocated and not resident. Where a part reads larger than
its whole, the remainder is not known, and the reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorlens.records.ledger import BALANCE, Block, Ledger, Term

_REASONS = {
    "unnamed": "the tensors have more bytes than the allocator has handed out: some are not its "
    "own, or were freed meanwhile",
    "cached": "the allocator tells more bytes handed out than it holds",
    "other": "the driver tells less in use than the allocator holds: it was given back meanwhile, "
    "or is managed memory that is not on the device now",
}
_MOVED = "it changed while it was read"


def balanced(
    device: str,
    source: str,
    precision: str,
    *,
    named: int,
    allocated: int | None = None,
    reserved: int | None = None,
    driver_used: int | None = None,
    driver_total: int | None = None,
    missing: Mapping[str, str],
    reasons: Mapping[str, str] = {},
    parts: Sequence[Term] = (),
    explanations: Mapping[str, str],
    blocks: tuple[Block, ...] = (),
    block_count: int = 0,
) -> Ledger:
    """Return a ledger with ``unnamed``, ``cached`` and ``other`` worked out.

    Args:
        device: its name.
        source: what counted.
        precision: how exactly.
        named: bytes of the tensors.
        allocated: bytes handed out; this and the figures below are None where they are unknown.
        reserved: bytes held from the driver.
        driver_used: bytes in use on the whole device.
        driver_total: bytes that the device has.
        missing: figure to the reason why it is None.
        reasons: remainder to the reason why a part may read larger than its whole, where it is not
            that of an accelerator.
        parts: terms below the figures; one that came out negative is unknown.
        explanations: figure to a line that says what it is.
        blocks: the largest unnamed ones.
        block_count: how many unnamed ones there are.
    """
    figures: dict[str, int | None] = {
        "named": named,
        "allocated": allocated,
        "reserved": reserved,
        "driver_used": driver_used,
    }
    why = dict(missing)
    found: dict[str, int | None] = {}
    for whole, (part, remainder) in BALANCE:
        unknown = next((each for each in (whole, part) if figures[each] is None), None)
        found[remainder] = difference(figures[whole], figures[part])
        if unknown is not None:
            why.setdefault(remainder, why.get(unknown, f"{unknown} is not known"))
        elif found[remainder] is None:
            why[remainder] = {**_REASONS, **reasons}[remainder]
    terms = []
    for term in parts:
        negative = term.nbytes is not None and term.nbytes < 0
        if negative:
            why.setdefault(term.key, _MOVED)
        terms.append(replace(term, nbytes=None) if negative else term)
    return Ledger(
        device=device,
        source=source,
        precision=precision,
        allocated=allocated,
        named=named,
        unnamed=found["unnamed"],
        reserved=reserved,
        cached=found["cached"],
        other=found["other"],
        driver_used=driver_used,
        driver_total=driver_total,
        parts=tuple(terms),
        explanations=explanations,
        missing=why,
        blocks=blocks,
        block_count=block_count,
    )


def difference(whole: int | None, part: int | None) -> int | None:
    """Return what is left of a figure without a part of it; None where that is not known."""
    return None if whole is None or part is None or part > whole else whole - part
