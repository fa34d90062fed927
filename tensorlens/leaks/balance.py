"""The balance of a device: the growth of its allocated memory, and its parts."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.leaks.growth.samples import WatchedLoop
from tensorlens.leaks.report import Balance, Growth, GrowthKind, Leak


def balance(
    watched: WatchedLoop,
    leaks: Sequence[tuple[float, Leak]],
    others: Sequence[tuple[float, Growth]],
) -> dict[str, Balance]:
    """Return the balance of each device whose allocated bytes are known.

    Args:
        watched: the samples.
        leaks: each with the bytes in the allocator's figures for each byte asked for.
        others: other growth in the blocks that are left, likewise.
    """
    span = watched.span
    first, last = watched.figures[span.warmup].allocated, watched.figures[-2].allocated
    steps = span.judged_steps
    found = {}
    for device, level in last.items():
        before = first.get(device, 0)
        if UNKNOWN in (level, before):
            continue
        mine = [(factor, leak.bytes_per_step) for factor, leak in leaks if leak.device == device]
        lost = round(steps * sum(nbytes for _, nbytes in mine))
        kinds = {}
        for kind in (GrowthKind.GARBAGE, GrowthKind.FILLING):
            own = [
                (factor, other.bytes_per_step)
                for factor, other in others
                if other.device == device and other.kind == kind
            ]
            kinds[kind] = round(steps * sum(nbytes for _, nbytes in own))
            mine += own
        rounding = round(steps * sum((factor - 1) * nbytes for factor, nbytes in mine))
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
