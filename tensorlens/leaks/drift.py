"""Lines whose blocks get larger now and then: more steps would tell whether it goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tensorlens.frameworks.base import Left
from tensorlens.leaks.groups import Block, Held
from tensorlens.leaks.growth_test import may_enlarge
from tensorlens.leaks.retained import ways_of
from tensorlens.leaks.samples import Watched
from tensorlens.leaks.unexplained import Explained, Levels
from tensorlens.records.leaks import Growth, GrowthKind
from tensorlens.units import format_bytes

_MOST_LINES = 3
"""Lines that are told, those that grew most."""


def drifts(
    watched: Watched,
    left: Left,
    explained: Explained,
    rest: Mapping[int, Levels],
    told: Collection[int],
) -> list[Growth]:
    """Return the lines that have as many blocks but more bytes, those that grew most first.

    Args:
        watched: the steps.
        left: what lives at the end.
        explained: what is known of it.
        rest: the figures of what is not.
        told: other lines of which it is told that they grow.
    """
    latest: dict[int, Block] = {}
    for address, size, birth, step in zip(
        left.address, left.size, left.birth, left.step, strict=True
    ):
        is_known = step < watched.warmup or birth in told or address in explained.addresses
        if not is_known and (birth not in latest or latest[birth].step < step):
            latest[birth] = Block(address, size, birth, step)
    found = {
        birth: rest[birth]
        for birth in latest
        if birth in rest and may_enlarge(rest[birth].blocks, rest[birth].nbytes)
    }
    ordered = sorted(found, key=lambda birth: -found[birth].growth)[:_MOST_LINES]
    ways = _ways(watched, [latest[birth] for birth in ordered])
    return [_growth(watched, birth, found[birth], ways[birth]) for birth in ordered]


def _ways(watched: Watched, blocks: list[Block]) -> Mapping[int, str]:
    """Return the shortest way that holds each block, by its line; empty where none is known."""
    if not blocks:
        return {}
    holdings = watched.steps.holdings([block.address for block in blocks])
    items = [
        Held(block, survivor).item
        for block, survivor in zip(blocks, holdings.survivors, strict=True)
    ]
    ways = ways_of(items)
    return {
        block.birth: str(own[0]) if own else "" for block, own in zip(blocks, ways, strict=True)
    }


def _growth(watched: Watched, birth: int, levels: Levels, path: str) -> Growth:
    rate = levels.growth / watched.span.steps
    where = watched.steps.line(birth) or "an unknown line"
    before, now = map(format_bytes, (levels.nbytes[0], levels.nbytes[-1]))
    amount = f"{format_bytes(round(rate))} a step, made at {where}"
    text = f"{amount}: as many tensors are there, but they had {before} and have {now} now"
    return Growth(GrowthKind.UNCLEAR, text, rate, path, watched.steps.device(birth))
