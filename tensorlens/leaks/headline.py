"""The headline of a leak report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorlens.leaks.growth.growth_test import CERTAIN
from tensorlens.leaks.growth.samples import LoopSamples
from tensorlens.leaks.report import Balance, Growth, GrowthKind, Leak, LeakKind
from tensorlens.render.figures import counted_about
from tensorlens.units import format_bytes

_TIMES_MORE = 3
"""How many times as many steps would tell what is not clear."""
_HARMLESS = {
    GrowthKind.FILLING: "go into containers with an end",
    GrowthKind.GARBAGE: "wait for the garbage collector",
}
"""Kinds of growth that end, and the words for them."""


def headline(
    watched: LoopSamples,
    leaks: Sequence[Leak],
    others: Sequence[Growth],
    sums: Mapping[str, Balance],
) -> str:
    """Return the verdict in a sentence."""
    count = watched.span.steps
    if leaks:
        tensors = sum(leak.tensors_per_step for leak in leaks)
        likely = "" if any(leak.certainty == CERTAIN for leak in leaks) else "likely a "
        kinds = {leak.kind for leak in leaks}
        kind = kinds.pop() if len(kinds) == 1 else LeakKind.LEAK
        number, nbytes = counted_about(tensors), _sum_of(leaks)
        graphs = [other for other in others if other.kind == GrowthKind.GRAPH]
        if graphs:
            its = "it keeps" if tensors == 1 else "they keep"
            graph = f"probably the autograd graph that {its} ({_sum_of(graphs)})"
            parts = f"{number} ({nbytes}) and {graph}"
            return f"{likely}{kind}: {_sum_of([*leaks, *graphs])} stay behind in each step: {parts}"
        return f"{likely}{kind}: {number} and {nbytes} stay behind in each step"
    unclear = [each for each in others if each.kind == GrowthKind.UNCLEAR]
    if unclear:
        amount = f"{_sum_of(unclear)} a step more, but not from each of them"
        more = _TIMES_MORE * (watched.made - watched.warmup_steps)
        return f"not clear after {count} steps: {amount}; watch {more} steps or more"
    gone = [each for each in others if each.kind == GrowthKind.GONE]
    if gone:
        return (
            f"memory grew by {_sum_of(gone)} a step while the loop ran, and is freed now: ask for "
            "the verdict before the loop's function returns"
        )
    if any(each.kind == GrowthKind.HOST for each in others):
        return f"no tensors stay behind in {_any(count)}, but host memory grows"
    grown = [
        f"{_sum_of(mine)} a step {words}"
        for kind, words in _HARMLESS.items()
        if (mine := [each for each in others if each.kind == kind and each.bytes_per_step])
    ]
    if grown:
        return f"no tensors are lost in {count} steps: {', and '.join(grown)}"
    rest = [
        each.unknown
        for device, each in sums.items()
        if 2 * each.unknown > watched.allocated(device)[0]
    ]
    if any(rest):
        return (
            f"no tensor is known to stay behind in {_any(count)}, but memory is "
            f"{format_bytes(sum(rest))} more at their end"
        )
    return f"no leak: nothing stays behind in {_any(count)}"


def _any(count: int) -> str:
    return "the one step judged" if count == 1 else f"any of {count} steps"


def _sum_of(several: Sequence[Leak | Growth]) -> str:
    return format_bytes(round(sum(each.bytes_per_step for each in several)))
