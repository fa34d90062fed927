"""Whether what steps leave behind is steady growth: judged by the steps it was made in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

CERTAIN, LIKELY, UNCLEAR, NONE = "certain", "likely", "unclear", "none"

_FEWEST = 3
"""Steps that must be judged before anything is called certain."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of one step."""

    tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether something grows steadily, and why that can be said."""

    certainty: str
    """:data:`CERTAIN`, :data:`LIKELY`, :data:`UNCLEAR`, or :data:`NONE`: it does not."""
    tensors_per_step: float
    bytes_per_step: float
    reason: str


def judge(left: Mapping[int, Left], steps: Sequence[int]) -> Judgement:
    """Tell whether every step leaves something behind.

    What the latest steps made may still be in use, a batch ahead or the last result, so it is what
    is left of the earliest steps that tells: a list that is cleared now and then, or a buffer of
    the last few steps, has nothing of them.

    Args:
        left: number of a step to what is left of it; nothing for steps that left nothing.
        steps: the steps to judge, in order: after the warm-up, without the last one.
    """
    made = [left.get(step) for step in steps]
    found = [each for each in made if each is not None]
    count = len(steps)
    if not found or not count:
        return Judgement(NONE, 0.0, 0.0, "nothing is left of the earlier steps")
    tensors = sum(each.tensors for each in found) / count
    nbytes = sum(each.nbytes for each in found) / count
    first, last = _ends(made)
    held = len(found)
    if held == count:
        return _of_every_step(found, tensors, nbytes)
    if held == 1:
        return Judgement(NONE, 0.0, 0.0, f"only step {steps[first]} left something behind")
    if last - first + 1 == held and first > 0:
        text = f"only the latest {held} of {count} steps are still there"
        return Judgement(NONE, 0.0, 0.0, text)
    if last - first + 1 == held:
        return Judgement(NONE, 0.0, 0.0, f"nothing is left of the steps after step {steps[last]}")
    regular = _interval(made)
    if regular is not None and held >= _FEWEST:
        text = f"one step in {regular} leaves the same behind, {held} times in {count} steps"
        return Judgement(LIKELY, tensors, nbytes, text)
    text = f"{held} of {count} steps left something behind: more steps would tell"
    return Judgement(UNCLEAR, tensors, nbytes, text)


def _of_every_step(found: Sequence[Left], tensors: float, nbytes: float) -> Judgement:
    count = len(found)
    same = len({each.tensors for each in found}) == 1
    if count < _FEWEST:
        text = f"each of only {count} steps left something behind: more steps would make it sure"
        return Judgement(LIKELY if count > 1 else UNCLEAR, tensors, nbytes, text)
    if same:
        text = f"each of {count} steps left the same number behind, the earliest too"
    else:
        text = f"each of {count} steps left something behind, the earliest too"
    return Judgement(CERTAIN, tensors, nbytes, text)


def _ends(made: Sequence[Left | None]) -> tuple[int, int]:
    places = [place for place, each in enumerate(made) if each is not None]
    return places[0], places[-1]


def _interval(made: Sequence[Left | None]) -> int | None:
    """Return every how many steps something is left, where that is regular."""
    places = [place for place, each in enumerate(made) if each is not None]
    intervals = {after - before for before, after in pairwise(places)}
    if len(intervals) != 1:
        return None
    (interval,) = intervals
    whole = places[0] < interval and len(made) - places[-1] <= interval
    return interval if whole and interval > 1 else None


def growing(levels: Sequence[int]) -> Judgement | None:
    """Tell whether one thing that is replaced each step gets larger each time, as by ``cat``.

    Args:
        levels: its bytes after each step, after the warm-up.
    """
    steps = [after - before for before, after in pairwise(levels)]
    if len(steps) < _FEWEST or min(steps) <= 0:
        return None
    mean = sum(steps) / len(steps)
    if len(set(steps)) == 1:
        text = f"it was {steps[0]} bytes larger after each of {len(steps)} steps"
        return Judgement(CERTAIN, 0.0, mean, text)
    return Judgement(CERTAIN, 0.0, mean, f"it was larger after each of {len(steps)} steps")
