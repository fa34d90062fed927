"""Tests a series for steady growth, judged by the steps that its blocks were made in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise, takewhile
from statistics import median

from tensorlens.leaks.report import Certainty

CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY
UNCLEAR, NONE = Certainty.UNCLEAR, Certainty.NONE

_FEWEST = 3
"""Steps that must be judged before anything is called certain."""
_MOST_RISES = 6
"""Rises after which a level that climbs is no series of jumps."""
_SHORT = 8
"""Steps below which a level has to rise in the last of them."""
_OF_A_THIRD = 0.2
"""The part of a climb that lies in each third of the time, at least."""


@dataclass(frozen=True, slots=True)
class WatchedSteps:
    """Which steps were watched; in a long loop, which stretches of several steps."""

    count: int
    """All of them, the warm-up included."""
    warmup: int
    stride: int = 1
    """How many steps each of them has: what is told of a step is of a real one."""

    @property
    def judged(self) -> range:
        """The steps that are judged: after the warm-up, without the last, which may be in use."""
        return range(self.warmup, self.count - 1)

    @property
    def all(self) -> range:
        """All steps but the last."""
        return range(self.count - 1)

    @property
    def steps(self) -> int:
        """How many real steps are judged."""
        return len(self.judged) * self.stride

    def words(self, count: int) -> str:
        """Return ``5 steps``, or ``128 stretches of 8 steps``."""
        return f"{count} steps" if self.stride == 1 else f"{count} stretches of {self.stride} steps"


@dataclass(frozen=True, slots=True)
class StepResidue:
    """Residue of one step."""

    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether something grows steadily, and why that can be said."""

    certainty: Certainty
    """:data:`CERTAIN`, :data:`LIKELY`, :data:`UNCLEAR`, or :data:`NONE`: it does not."""
    tensors_per_step: float
    bytes_per_step: float
    reason: str
    rate: float = 1.0
    """In which part of the steps something is left."""


def judge(left: Mapping[int, StepResidue], span: WatchedSteps) -> Judgement:
    """Tell whether every step leaves something behind.

    What the latest steps made may still be in use, a batch ahead or the last result, so it is what
    is left of the earliest steps that tells: a list that is cleared now and then, or a buffer of
    the last few steps, has nothing of them. The steps of the warm-up are asked only whether they
    are part of a regular pattern: one step in two, or in three.

    Args:
        left: number of a step to what is left of it; nothing for steps that left nothing.
        span: the steps that were watched.
    """
    steps = span.judged
    made = [left.get(step) for step in steps]
    found = [each for each in made if each is not None]
    count, held = len(steps), len(found)
    if not found or not count:
        return Judgement(NONE, 0.0, 0.0, "nothing is left of the earlier steps")
    if held == count:
        return _of_every_step(found, span)
    regular = _regular(left, span)
    if regular is not None:
        return regular
    places = [place for place, each in enumerate(made) if each is not None]
    first, last = places[0], places[-1]
    if held == 1:
        return Judgement(NONE, 0.0, 0.0, f"only step {steps[first]} left something behind")
    if last - first + 1 == held and first > 0:
        text = f"only the latest {held} of {count} steps are still there"
        return Judgement(NONE, 0.0, 0.0, text)
    if last - first + 1 == held:
        return Judgement(NONE, 0.0, 0.0, f"nothing is left of the steps after step {steps[last]}")
    if _is_once_and_latest(places, count):
        text = f"only step {steps[first]} and the latest left something behind"
        return Judgement(NONE, 0.0, 0.0, text)
    tensors = sum(each.tensors for each in found) / span.steps
    nbytes = sum(each.nbytes for each in found) / span.steps
    text = f"{held} of {span.words(count)} left something behind: run more steps to tell"
    return Judgement(UNCLEAR, tensors, nbytes, text, held / count)


def _is_once_and_latest(places: Sequence[int], count: int) -> bool:
    """Tell whether one place is followed by a gap, and that by fewer places up to the end.

    That is a state that is made late, and the batches ahead.
    """
    first, second = places[:2]
    latest = count - second
    return len(places) == 1 + latest and second - first > latest + 1


def _of_every_step(found: Sequence[StepResidue], span: WatchedSteps) -> Judgement:
    count = len(found)
    tensors = sum(each.tensors for each in found) / span.steps
    nbytes = sum(each.nbytes for each in found) / span.steps
    same = len({each.tensors for each in found}) == 1
    if count < _FEWEST:
        text = f"each of only {count} steps left something behind: run more steps to be sure"
        return Judgement(LIKELY if count > 1 else UNCLEAR, tensors, nbytes, text)
    if same:
        text = f"each of {span.words(count)} left the same number of tensors behind"
    else:
        text = f"each of {span.words(count)} left tensors behind"
    return Judgement(CERTAIN, tensors, nbytes, text)


def _regular(left: Mapping[int, StepResidue], span: WatchedSteps) -> Judgement | None:
    """Return the judgement on what is left every so many steps, the warm-up's included."""
    # the last step confirms a pattern, but what it made may be in use
    places = [step for step in range(span.count) if step in left]
    earlier = [step for step in places if step in span.all]
    intervals = {after - before for before, after in pairwise(places)}
    if len(intervals) != 1 or len(places) < _FEWEST or len(earlier) < _FEWEST - 1:
        return None
    (interval,) = intervals
    whole = places[0] < interval and span.count - places[-1] <= interval
    if interval < 2 or not whole:
        return None
    held = len(earlier)
    every = interval * span.stride
    tensors = sum(left[step].tensors for step in earlier) / held / every
    nbytes = sum(left[step].nbytes for step in earlier) / held / every
    times = f"{len(places)} times in {span.count * span.stride} steps"
    text = f"one step in {every} left something behind, {times}"
    return Judgement(LIKELY, tensors, nbytes, text, 1 / interval)


def growing(levels: Sequence[int], stride: int = 1) -> Judgement | None:
    """Tell whether one thing that is replaced each step gets larger each time, as by ``cat``.

    Args:
        levels: its bytes after each step, after the warm-up; or after so many steps each.
        stride: how many.
    """
    steps = [after - before for before, after in pairwise(levels)]
    if len(steps) < _FEWEST or min(steps) <= 0:
        return None
    mean = sum(steps) / len(steps) / stride
    words = WatchedSteps(0, 0, stride).words(len(steps))
    amount = f"{steps[0]} bytes larger" if len(set(steps)) == 1 else "larger"
    text = f"it was {amount} after each of {words}"
    return Judgement(CERTAIN, 0.0, mean, text)


def climbs(levels: Sequence[int]) -> bool:
    """Tell whether a level rises all the time, and never again comes down to where it was.

    What it never comes down to again has to rise in each third of the time, and so often that it
    is no jump or two: not a state that is made lazily, a buffer that fills, or the last piece of a
    saw's tooth. A saw whose teeth begin higher and higher climbs.

    Args:
        levels: after each step, the warm-up aside.
    """
    last, third = len(levels) - 1, len(levels) // 3
    if last < _FEWEST or max(levels[:third]) >= min(levels[-third:]):
        return False
    floor = [*accumulate(reversed(levels), min)][::-1]
    # what has stopped by now does not climb
    tail = 1 if last < _SHORT else max(2, last // 6)
    if floor[last - tail] == floor[last]:
        return False
    rises = min(_MOST_RISES, len(levels) // 2)
    if sum(after > before for before, after in pairwise(floor)) < rises:
        return False
    marks = [floor[round(part * last / 3)] for part in range(4)]
    least = _OF_A_THIRD * (marks[-1] - marks[0])
    return all(after - before >= least for before, after in pairwise(marks))


def may_climb(levels: Sequence[int]) -> bool:
    """Tell whether a level may climb: more steps would tell.

    A level that never falls may, where it rises more than once and has not stopped. A saw may,
    whose teeth begin higher and higher; where it fell once, the beginning counts as the foot of a
    tooth. One that rises often, at no rhythm, may where it is higher in each third.

    Args:
        levels: after each step, the warm-up aside.
    """
    rises = [at for at, (before, after) in enumerate(pairwise(levels)) if after > before]
    if len(rises) < 2 or levels[-1] <= levels[0]:
        return False
    if len(rises) >= _MOST_RISES and _is_higher_by_thirds(levels):
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
    """Tell whether as many blocks may get larger and larger: more steps would tell.

    Args:
        counts: how many there are after each step, the warm-up aside.
        levels: their bytes.
    """
    steady = [*takewhile(lambda count: count == counts[-1], reversed(counts))]
    tail = levels[-len(steady) :]
    falls = any(after < before for before, after in pairwise(tail))
    return not falls and may_climb(tail)


def is_renewed(levels: Sequence[int], expected: int) -> bool:
    """Tell whether what a line has made does not grow: as much is freed as is made.

    Args:
        levels: how many of its blocks live before the first step that is judged, and after each.
        expected: how many of the steps left something behind.
    """
    grown = sum(after > before for before, after in pairwise(levels))
    return 2 * grown < expected
