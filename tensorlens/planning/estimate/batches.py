"""``max_batch()``: the largest batch that fits, by bisection over simulated peaks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import Any, Unpack

from tensorlens.errors import UsageError
from tensorlens.planning.card import Card, find_card
from tensorlens.planning.estimate.api import ProgramOptions, Request, request
from tensorlens.planning.estimate.result import Estimate, LargestBatch
from tensorlens.planning.estimate.target import MakeStep
from tensorlens.planning.processes import Runner, shared_runner
from tensorlens.planning.progress import progress

MAX_TRIED = 1 << 24
"""Default of the largest batch to try."""

_RATIO = 16
"""Largest ratio of the next batch to the last one that fits."""

_LINEAR = range(3, 7)
"""Numbers of tries, all of which fit, after which the next batch is the first that a line puts
beyond the capacity; after fewer or more it at least doubles."""


def largest_that_fits(
    needed: Callable[[int], int | None],
    capacity: int,
    lowest: int,
    highest: int | None,
    multiple: int = 1,
) -> tuple[int, int]:
    """Return the largest batch that fits, or 0, and the smallest known that does not.

    ``needed`` returns the bytes of a batch; None if it did not run.

    Raises:
        UsageError: no batch that is a multiple lies between ``lowest`` and ``highest``.
    """
    lowest, highest = -(-lowest // multiple), (highest or MAX_TRIED) // multiple
    if lowest > highest:
        raise UsageError(f"no multiple of {multiple} lies within the batches to try")
    tried: dict[int, int | None] = {}
    with progress("search", "run") as done:

        def fits(number: int) -> bool:
            done(len(tried), f"batch {number * multiple:,}")
            nbytes = tried[number] = needed(number * multiple)
            return nbytes is not None and nbytes <= capacity

        if not fits(lowest):
            return 0, lowest * multiple
        fitting, too_large = lowest, highest + 1
        while too_large - fitting > 1:
            reach = _reach(tried, fitting, capacity)
            if too_large > highest:
                further = reach + 1 if len(tried) in _LINEAR else max(reach, 2 * fitting)
                wanted = min(further, _RATIO * fitting)
            # peaks may not lie on a line: bisect every second time
            elif len(tried) % 2:
                wanted = reach
            elif too_large > 4 * fitting:
                wanted = math.isqrt(fitting * too_large)
            else:
                wanted = (fitting + too_large) // 2
            wanted = max(fitting + 1, min(wanted, too_large - 1))
            if fits(wanted):
                fitting = wanted
            else:
                too_large = wanted
    return fitting * multiple, too_large * multiple


def _reach(tried: Mapping[int, int | None], fitting: int, capacity: int) -> int:
    """Return the batch that fills the capacity at the growth between neighbours of ``fitting``."""
    known = {number: nbytes for number, nbytes in tried.items() if nbytes is not None}
    numbers = sorted(known)
    place = numbers.index(fitting)
    one, other = numbers[max(place - 1, 0)], numbers[min(place + 1, len(numbers) - 1)]
    grown = known[other] - known[one]
    if grown <= 0:
        return 2 * fitting
    return fitting + int((capacity - known[fitting]) * (other - one) / grown)


class MaxBatch(int):
    """The largest batch that fits; 0 if even the smallest does not."""

    estimate: Estimate
    """That of the largest batch, or of the smallest tried if none fits; its
    :attr:`~tensorlens.Estimate.largest` has the capacity and the next batch."""
    estimates: Mapping[int, Estimate]
    """Every batch that was tried."""
    capacity: int
    """Bytes of the card, context included."""
    reaches_end: bool
    """Whether the largest batch to try fits."""
    surely: bool
    """Whether upper bounds were compared with the capacity."""

    def __new__(cls, estimate: Estimate, estimates: Mapping[int, Estimate]) -> MaxBatch:
        """Return the largest batch of an estimate."""
        largest = estimate.largest
        assert largest is not None
        self = super().__new__(cls, largest.batch)
        self.estimate, self.estimates = estimate, estimates
        self.capacity, self.reaches_end = largest.capacity, largest.is_limit
        self.surely = largest.is_sure
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.estimate, self.estimates


def max_batch(
    make_step: MakeStep | Any,
    capacity: int | str | None = None,
    *,
    lowest: int = 1,
    highest: int | None = None,
    surely: bool = False,
    card: str | Card | None = None,
    **options: Unpack[ProgramOptions],
) -> MaxBatch:
    """Return the largest batch that fits into a capacity, without a card.

    Args:
        make_step: as for :func:`tensorlens.estimate`; it is called with the batch. Of a Keras
            model the batch varies.
        capacity: bytes of the card, context included, or a text such as ``24 GiB``; by
            default all that ``card`` has.
        lowest: smallest batch to try, at least 1.
        highest: largest batch to try; None: no limit.
        surely: compare the upper bound with the capacity; by default the likeliest figure.
        card: name of the card.
        options: as for :func:`tensorlens.estimate`.

    Raises:
        UsageError: an argument makes no sense; one line says why.
        ProgramFailed: the program raised an error.
    """
    least, most = lowest, lowest if highest is None else highest
    if not (isinstance(least, Integral) and isinstance(most, Integral) and 1 <= least <= most):
        raise UsageError(f"batches from {lowest} to {highest}: give 1 <= lowest <= highest")
    if capacity is None and card is None:
        raise UsageError(
            'max_batch() needs a capacity or a card: max_batch(make_step, "24 GiB") or'
            ' max_batch(make_step, card="t4")'
        )
    room = find_card(card).memory if capacity is None else capacity
    asked = request(make_step, card=card, capacity=room, **options)
    with shared_runner(keeps=True) as runner:
        return search_largest_batch(asked, runner, lowest, highest, surely=surely)


def search_largest_batch(
    asked: Request,
    runner: Runner,
    lowest: int,
    highest: int | None,
    *,
    surely: bool = False,
    multiple: int = 1,
) -> MaxBatch:
    """Return the largest batch whose estimate fits into the request's capacity."""
    capacity = asked.spec.capacity
    assert capacity is not None
    tried: dict[int, Estimate] = {}
    needs: dict[int, int] = {}

    def needed(batch: int) -> int:
        found = tried[batch] = asked.with_argument(batch).run(runner)
        if surely and found.unsimulated:
            raise UsageError(f"surely=True takes the upper bound, and {found.unsimulated}")
        needs[batch] = found.needed.high if surely else found.needed.point
        return needs[batch]

    batch, beyond = largest_that_fits(needed, capacity, lowest, highest, multiple)
    found = LargestBatch(
        batch,
        capacity,
        next_batch=beyond if beyond in tried else None,
        next_needed=needs.get(beyond),
        is_limit=bool(batch) and beyond not in tried,
        is_uneven=any(
            more < less for less, more in pairwise(needs[each] for each in sorted(needs))
        ),
        is_sure=surely,
    )
    return MaxBatch(replace(tried[batch or beyond], largest=found), dict(sorted(tried.items())))
