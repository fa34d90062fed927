"""The balance of each device: what its allocated memory grew by, and in what, to the byte."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.leaks.samples import Watched
from tensorlens.records.leaks import Balance, Growth, GrowthKind, Leak


def balance(
    watched: Watched,
    leaks: Sequence[tuple[float, Leak]],
    others: Sequence[tuple[float, Growth]],
) -> dict[str, Balance]:
    """Return the balance of each device whose allocated bytes are known.

    Args:
        watched: the steps.
        leaks: what grows without a bound, each with how many bytes the allocator's figures count
            for one that was asked for.
        others: what else was found, by the blocks that are left.
    """
    first, last = watched.figures[watched.warmup].allocated, watched.figures[-2].allocated
    steps = watched.span.steps
    found = {}
    for device, level in last.items():
        before = first.get(device, 0)
        if UNKNOWN in (level, before):
            continue
        mine = [(taken, leak.bytes_per_step) for taken, leak in leaks if leak.device == device]
        lost = round(steps * sum(nbytes for _, nbytes in mine))
        kinds = {}
        for kind in (GrowthKind.GARBAGE, GrowthKind.FILLING):
            own = [
                (taken, other.bytes_per_step)
                for taken, other in others
                if other.device == device and other.kind == kind
            ]
            kinds[kind] = round(steps * sum(nbytes for _, nbytes in own))
            mine += own
        rounding = round(steps * sum((taken - 1) * nbytes for taken, nbytes in mine))
        garbage, filling = kinds[GrowthKind.GARBAGE], kinds[GrowthKind.FILLING]
        rest = level - before - lost - garbage - filling - rounding
        found[device] = Balance(
            steps=steps,
            growth=level - before,
            leaks=lost,
            garbage=garbage,
            filling=filling,
            rounding=rounding,
            unknown=max(0, rest),
            freed=max(0, -rest),
        )
    return found
