"""Test of a series for steady growth, by the steps that its blocks were made in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise, takewhile
from statistics import median

from tensorlens.leaks.report import Certainty
from tensorlens.leaks.watched_loop import Span

CERTAIN, LIKELY, UNCLEAR = Certainty.CERTAIN, Certainty.LIKELY, Certainty.UNCLEAR

_MIN_STEPS = 3
"""Steps that must be judged before anything is called certain."""
_ENOUGH_RISES = 6
"""Rises after which a level that climbs is no series of jumps."""
_SHORT = 8
"""Number of steps below which a level that climbs has to rise in the last step."""
_MIN_THIRD_FRACTION = 0.2
"""Fraction of a climb that must lie in each third of the time."""


@dataclass(frozen=True, slots=True)
class LeftOfStep:
    """Blocks that are left of one step."""

    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Certainty that something grows steadily, with the reason."""

    certainty: Certainty
    tensors_per_step: float
    bytes_per_step: float
    reason: str
    rate: float = 1.0
    """Fraction of the steps that left something behind."""


def judge(left: Mapping[int, LeftOfStep], span: Span) -> Judgement | None:
    """Judge whether every step leaves something behind; None if it does not grow.

    Blocks of the latest steps may still be in use: a batch ahead, the last result. So blocks of the
    earliest steps decide: a list that is cleared now and then, or a buffer of the last few steps,
    has none of them. The steps of the warm-up count only for a regular pattern: one step in two,
    or in three.

    Args:
        left: number of a step to its blocks that are left, without steps that left nothing.
        span: the watched steps.
    """
    places = [place for place, step in enumerate(span.judged) if step in left]
    found = [left[step] for step in span.judged if step in left]
    count, held = len(span.judged), len(found)
    if not found:
        return None
    if held == count:
        return _of_every_step(found, span)
    regular = _regular(left, span)
    if regular is not None:
        return regular
    if places[-1] - places[0] + 1 == held or _is_once_and_latest(places, count):
        # made once, or by steps that have stopped, or by the latest alone
        return None
    tensors = sum(each.tensors for each in found) / span.judged_steps
    nbytes = sum(each.nbytes for each in found) / span.judged_steps
    text = f"{held} of {span.words(count)} left something behind: run more steps to tell"
    return Judgement(UNCLEAR, tensors, nbytes, text, held / count)


def _is_once_and_latest(places: Sequence[int], count: int) -> bool:
    """Return whether one step is followed by a gap, and this by a shorter run up to the end.

    This is a state that is made late, with the batches ahead.
    """
    first, second = places[:2]
    latest = count - second
    return len(places) == 1 + latest and second - first > latest + 1


def _of_every_step(found: Sequence[LeftOfStep], span: Span) -> Judgement:
    count = len(found)
    tensors = sum(each.tensors for each in found) / span.judged_steps
    nbytes = sum(each.nbytes for each in found) / span.judged_steps
    same = len({each.tensors for each in found}) == 1
    if count < _MIN_STEPS:
        text = f"each of only {count} steps left something behind: run more steps to be sure"
        return Judgement(LIKELY if count > 1 else UNCLEAR, tensors, nbytes, text)
    if same:
        text = f"each of {span.words(count)} left the same number of tensors behind"
    else:
        text = f"each of {span.words(count)} left tensors behind"
    return Judgement(CERTAIN, tensors, nbytes, text)


def _regular(left: Mapping[int, LeftOfStep], span: Span) -> Judgement | None:
    """Judge blocks that are left at a regular interval of steps, the warm-up's included."""
    # the last step confirms a pattern, but its blocks may be in use
    places = [step for step in range(span.stretches) if step in left]
    earlier = [step for step in places if step in span.before_last]
    intervals = {after - before for before, after in pairwise(places)}
    if len(intervals) != 1 or len(places) < _MIN_STEPS or len(earlier) < _MIN_STEPS - 1:
        return None
    (interval,) = intervals
    whole = places[0] < interval and span.stretches - places[-1] <= interval
    if interval < 2 or not whole:
        return None
    held = len(earlier)
    every = interval * span.stride
    tensors = sum(left[step].tensors for step in earlier) / held / every
    nbytes = sum(left[step].nbytes for step in earlier) / held / every
    times = f"{len(places)} times in {span.stretches * span.stride} steps"
    text = f"one step in {every} left something behind, {times}"
    return Judgement(LIKELY, tensors, nbytes, text, 1 / interval)


def growing(levels: Sequence[int], stride: int = 1) -> Judgement | None:
    """Judge whether a block that is replaced in each step gets larger each time, as by ``cat``.

    Args:
        levels: its bytes after each stretch, without the warm-up.
        stride: number of steps in a stretch.
    """
    rises = [after - before for before, after in pairwise(levels)]
    if len(rises) < _MIN_STEPS or min(rises) <= 0:
        return None
    mean = sum(rises) / len(rises) / stride
    words = Span(0, 0, stride).words(len(rises))
    amount = f"{rises[0]} bytes larger" if len(set(rises)) == 1 else "larger"
    text = f"it was {amount} after each of {words}"
    return Judgement(CERTAIN, 0.0, mean, text)


def climbs(levels: Sequence[int]) -> bool:
    """Return whether a level rises all the time, and never comes down again to where it was.

    Its floor, the lowest level that is still to come, has to rise in each third of the time, and
    more often than in a jump or two: not a state that is made lazily, a buffer that fills, or the
    last piece of a saw's tooth. A saw whose teeth begin higher and higher climbs.

    Args:
        levels: levels after each step, without the warm-up.
    """
    last, third = len(levels) - 1, len(levels) // 3
    if last < _MIN_STEPS or max(levels[:third]) >= min(levels[-third:]):
        return False
    floor = [*accumulate(reversed(levels), min)][::-1]
    # a level that has stopped by now does not climb
    tail = 1 if last < _SHORT else max(2, last // 6)
    if floor[last - tail] == floor[last]:
        return False
    rises = min(_ENOUGH_RISES, len(levels) // 2)
    if sum(after > before for before, after in pairwise(floor)) < rises:
        return False
    marks = [floor[round(part * last / 3)] for part in range(4)]
    least = _MIN_THIRD_FRACTION * (marks[-1] - marks[0])
    return all(after - before >= least for before, after in pairwise(marks))


def may_climb(levels: Sequence[int]) -> bool:
    """Return whether a level may climb, which more steps would show.

    A level that never falls may if it rises more than once and has not stopped. So may a saw whose
    teeth begin higher and higher; if it fell only once, its beginning counts as the foot of a
    tooth. A level that rises often, without a rhythm, may if it is higher in each third.

    Args:
        levels: levels after each step, without the warm-up.
    """
    rises = [at for at, (before, after) in enumerate(pairwise(levels)) if after > before]
    if len(rises) < 2 or levels[-1] <= levels[0]:
        return False
    if len(rises) >= _ENOUGH_RISES and _is_higher_by_thirds(levels):
        return True
    feet = [
        levels[at]
        for at in range(1, len(levels))
        if levels[at - 1] > levels[at] <= min(levels[at : at + 2])
    ]
    if not feet:
        longest = max(after - before for before, after in pairwise(rises))
        return len(levels) - 2 - rises[-1] < longest
    if len(feet) == 1:
        feet.insert(0, levels[0])
    orders = [(after > before) - (after < before) for before, after in combinations(feet, 2)]
    return 2 * sum(orders) >= len(orders)


def _is_higher_by_thirds(levels: Sequence[int]) -> bool:
    third = len(levels) // 3
    first, middle, last = levels[:third], levels[third:-third], levels[-third:]
    return max(first) < median(middle) < median(last)


def may_enlarge(counts: Sequence[int], levels: Sequence[int]) -> bool:
    """Return whether blocks may get larger and larger since their number last changed.

    Args:
        counts: numbers of blocks after each step, without the warm-up.
        levels: their bytes.
    """
    steady = [*takewhile(lambda count: count == counts[-1], reversed(counts))]
    tail = levels[-len(steady) :]
    falls = any(after < before for before, after in pairwise(tail))
    return not falls and may_climb(tail)


def is_renewed(levels: Sequence[int], expected: int) -> bool:
    """Return whether a line frees as many blocks as it makes.

    Args:
        levels: numbers or bytes of its live blocks before the first judged step, and after each.
        expected: number of steps that left something behind.
    """
    grown = sum(after > before for before, after in pairwise(levels))
    return 2 * grown < expected
