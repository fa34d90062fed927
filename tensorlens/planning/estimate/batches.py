"""``max_batch()``: the largest batch that fits, by bisection over simulated peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.planning.card import Card
from tensorlens.planning.estimate.cards import find_card
from tensorlens.planning.estimate.request import request
from tensorlens.planning.estimate.result import Estimate, LargestBatch
from tensorlens.planning.estimate.target import MakeStep
from tensorlens.planning.processes import shared_runner

MOST = 1 << 24
"""The largest batch that is tried where none is named."""


def largest_that_fits(
    fits: Callable[[int], bool], guess: Callable[[int, int], int], lowest: int, highest: int
) -> tuple[int, int]:
    """Return the largest that fits, 0 where not even the lowest does, and the next larger.

    Args:
        fits: tries one; what is larger than one that does not fit does not fit either.
        guess: gives the next to try between the largest known to fit and the smallest known not
            to, or ``highest + 1``.
        lowest: the smallest worth trying.
        highest: the largest.
    """
    if not fits(lowest):
        return 0, lowest
    fitting, too_large = lowest, highest + 1
    while too_large - fitting > 1:
        between = guess(fitting, too_large)
        if fits(between):
            fitting = between
        else:
            too_large = between
    return fitting, too_large


class MaxBatch(int):
    """The largest batch; 0 where not even the smallest one fits."""

    capacity: int
    """Bytes of the card, context included."""
    estimates: Mapping[int, Estimate]
    """Every batch that was tried."""
    reaches_end: bool
    """Whether the largest batch that was allowed fits."""

    def __new__(
        cls, batch: int, capacity: int, estimates: Mapping[int, Estimate], reaches_end: bool
    ) -> MaxBatch:
        """Return the batch with what led to it."""
        self = super().__new__(cls, batch)
        self.capacity, self.estimates, self.reaches_end = capacity, estimates, reaches_end
        return self

    @property
    def estimate(self) -> Estimate:
        """The estimate of the largest batch, or of the smallest tried where none fits."""
        found = self.estimates[int(self) or min(self.estimates)]
        beyond = int(self) + 1 if self else min(self.estimates)
        needed = self.estimates[beyond].needed.point if beyond in self.estimates else None
        return replace(
            found,
            largest=LargestBatch(
                batch=int(self),
                capacity=self.capacity,
                next_batch=None if needed is None else beyond,
                next_needed=needed,
                is_limit=self.reaches_end,
            ),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MaxBatch, (int(self), self.capacity, self.estimates, self.reaches_end)


def max_batch(
    make_step: MakeStep | Any,
    capacity: int | str | None = None,
    *,
    lowest: int = 1,
    highest: int | None = None,
    surely: bool = False,
    card: str | Card | None = None,
    steps: int = 2,
    settings: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    world_size: int = 1,
    **of_keras: Any,
) -> MaxBatch:
    """Return the largest batch that fits into a capacity, without a card.

    Args:
        make_step: as for :func:`tensorlens.estimate`; it is called with the batch. Of a Keras
            model the batch is what varies.
        capacity: bytes of the card, context included, or a text such as ``24 GiB``; by
            default all that ``card`` has.
        lowest: the smallest batch worth trying, at least 1.
        highest: the largest; None: no end.
        surely: take the upper bound for the figure; by default the likeliest.
        card: the card's name.
        steps: how many are run for each batch.
        settings: what ``PYTORCH_CUDA_ALLOC_CONF`` will be; by default what it is now.
        arguments: keyword arguments of ``make_step``.
        world_size: how many processes train together.
        of_keras: of a Keras model, as for :func:`tensorlens.estimate`.

    Raises:
        UsageError: something of it makes no sense; one line says what.
        ProgramFailed: the program raised an error.
    """
    _check_range(lowest, highest)
    if capacity is None and card is None:
        raise UsageError(
            'max_batch() needs a capacity or a card: max_batch(make_step, "24 GiB") or'
            ' max_batch(make_step, card="t4")'
        )
    asked = request(
        make_step,
        card=card,
        capacity=find_card(card).memory if capacity is None else capacity,
        steps=steps,
        settings=settings,
        arguments=arguments,
        world_size=world_size,
        **of_keras,
    )
    room = asked.place.capacity
    assert room is not None
    with shared_runner(keeps=True) as runner:
        return largest_batch(
            lambda batch: asked.with_batch(batch).ask(runner), room, lowest, highest, surely=surely
        )


def largest_batch(
    estimated: Callable[[int], Estimate],
    capacity: int,
    lowest: int,
    highest: int | None,
    *,
    surely: bool = False,
) -> MaxBatch:
    """Return the largest batch whose estimate fits into so many bytes.

    Args:
        estimated: gives the estimate for a batch.
        capacity: bytes of the card, context included.
        lowest: the smallest batch worth trying.
        highest: the largest; None: no end.
        surely: take the upper bound for the figure.

    Raises:
        UsageError: there is no batch between these.
    """
    _check_range(lowest, highest)
    return _Search(estimated, capacity, surely).largest(lowest, highest or MOST)


def _check_range(lowest: int, highest: int | None) -> None:
    if lowest < 1 or (highest is not None and highest < lowest):
        raise UsageError(f"batches from {lowest} to {highest}: give 1 <= lowest <= highest")


class _Search:
    def __init__(self, estimated: Callable[[int], Estimate], capacity: int, surely: bool) -> None:
        self._estimated = estimated
        self._surely = surely
        self._tried: dict[int, Estimate] = {}
        self._capacity = capacity

    def largest(self, lowest: int, highest: int) -> MaxBatch:
        """Find it between two batches, which fit and do not; peaks grow with the batch."""
        batch, _ = largest_that_fits(self._fits, self._guess, lowest, highest)
        tried = dict(sorted(self._tried.items()))
        return MaxBatch(batch, self._capacity, tried, batch == highest)

    def _fits(self, batch: int) -> bool:
        self._tried[batch] = self._estimated(batch)
        return self._needed(batch) <= self._capacity

    def _needed(self, batch: int) -> int:
        found = self._tried[batch]
        if self._surely and found.unsimulated:
            raise UsageError(f"surely=True takes the upper bound, and {found.unsimulated}")
        needed = found.needed
        return needed.high if self._surely else needed.point

    def _guess(self, fitting: int, too_large: int) -> int:
        """Return the next to try: where a line through what is known meets the capacity."""
        if len(self._tried) == 1:
            return min(2 * fitting, too_large - 1)
        known = sorted(self._tried)
        place = known.index(fitting)
        one, other = known[max(place - 1, 0)], known[min(place + 1, len(known) - 1)]
        slope = (self._needed(other) - self._needed(one)) / (other - one)
        if slope <= 0:
            return min(2 * fitting, (fitting + too_large) // 2 + 1, too_large - 1)
        room = (self._capacity - self._needed(fitting)) / slope
        reach = fitting + int(room) + (too_large not in self._tried and len(known) > 2)
        halfway = (fitting + too_large) // 2
        # a line that is off by little must not end in steps of one
        is_step = fitting - 1 in self._tried
        if too_large in self._tried and (is_step or len(known) > 6):
            return halfway
        return max(fitting + 1, min(reach, too_large - 1))
