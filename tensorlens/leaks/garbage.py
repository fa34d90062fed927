"""Garbage: whether Python's collector works while a loop runs, and what it frees at the end."""

from __future__ import annotations

import gc
from dataclasses import replace

from tensorlens.leaks.growth.groups import left_by_step
from tensorlens.leaks.growth.growth_test import NONE, judge
from tensorlens.leaks.growth.retained import RetainedGroup
from tensorlens.leaks.growth.samples import LoopSamples
from tensorlens.leaks.inspection import Inspection

_COLLECT = "leave the collector on, or call gc.collect() now and then; or break the cycle"
_FREEZE = "call gc.freeze() once, before the loop: what is frozen is never collected"


class Collections:
    """Asks after steps whether cycles are collected, at a few microseconds.

    Args:
        warmup: how many steps at the beginning do not count.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._seen = 0
        """The last step that it was told of."""
        self._last = 0
        """The last step that ended with a collector that runs, or that somebody ran."""
        self._runs = _runs()
        # to count them takes the longer the more there are
        self._frozen = gc.get_freeze_count()

    def step_ended(self, step: int) -> None:
        """Say that a step has ended, and how many have by now."""
        runs = _runs()
        if runs != self._runs or (gc.isenabled() and gc.get_threshold()[0] > 0):
            self._last = step
        self._runs = runs
        if self._seen < self._warmup:
            self._frozen = gc.get_freeze_count()
        self._seen = step

    @property
    def is_off(self) -> bool:
        """Whether nothing was collected after the warm-up, nor will be."""
        return self._last <= self._warmup

    @property
    def is_frozen(self) -> bool:
        """Whether objects were frozen after the warm-up."""
        return gc.get_freeze_count() > self._frozen

    def resume(self) -> None:
        """Say that collections up to now were not the program's."""
        self._runs = _runs()


def collect(watched: LoopSamples, seen: Inspection) -> frozenset[int]:
    """Run the collector where it matters, and return the addresses that it has freed.

    Not where the program collects nothing: there a cycle tells by itself.
    """
    is_known = all(each.is_held for each in seen.found) and not seen.grew_otherwise
    if seen.left is None or is_known or watched.uncollected:
        return frozenset()
    gc.collect()
    now = watched.steps.left(0)
    return frozenset(seen.left.address).difference(() if now is None else now.address)


def without_garbage(
    found: RetainedGroup, dead: frozenset[int], watched: LoopSamples
) -> RetainedGroup:
    """Judge what nobody holds again, by what of it the collector has left."""
    if found.is_held:
        return found
    if watched.uncollected:
        return replace(found, is_garbage=found.cycle is not None or watched.is_frozen)
    left = [block for block in found.blocks if block.address not in dead]
    judgement = judge(left_by_step(left), watched.span)
    is_one = found.is_replaced or found.is_population
    if len(left) == len(found.blocks):
        # no cycle holds it: the collector has been there
        return replace(found, cycle=None)
    if left and is_one:
        return found
    if judgement.certainty == NONE:
        return replace(found, is_garbage=True)
    below = found.bytes_per_step - found.judgement.bytes_per_step
    nbytes = judgement.bytes_per_step + below
    # what hangs below is not told apart
    return replace(found, judgement=judgement, bytes_per_step=nbytes)


def garbage_advice(watched: LoopSamples) -> str:
    """Return what to do about cycles that are never collected."""
    return _FREEZE if watched.is_frozen else _COLLECT


def _runs() -> int:
    """Return how many times the oldest generation was collected."""
    return int(gc.get_stats()[-1]["collections"])
