"""The verdict on the steps of a loop: leaks, other growth, and one line that sums them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.heap.paths import UNSEEN
from tensorlens.interpreter import frozen_objects
from tensorlens.leaks.graph_growth import GraphGrowth, graph_growth
from tensorlens.leaks.growth.containers import end_of
from tensorlens.leaks.growth.growth_test import CERTAIN, UNCLEAR, climbs, growing
from tensorlens.leaks.growth.retained import Fate, RetainedGroup
from tensorlens.leaks.host_growth import host_growth
from tensorlens.leaks.leak_records import leak_of, with_models_as_one
from tensorlens.leaks.left_blocks import Inspection, inspect
from tensorlens.leaks.report import (
    Balance,
    Growth,
    GrowthKind,
    Leak,
    LeakKind,
    LeakReport,
    place_of,
)
from tensorlens.leaks.watched_loop import NO_BLOCKS, WatchedLoop
from tensorlens.render.figures import counted, counted_about
from tensorlens.units import format_bytes

_MORE_STEPS_FACTOR = 3
"""Factor of steps that are proposed if the verdict is not clear."""
_ENDING_GROWTH = {
    GrowthKind.FILLING: "go into containers with an end",
    GrowthKind.GARBAGE: "wait for the garbage collector",
}
"""Kinds of growth that stop by themselves, with their words for the headline."""
_EXPLAINED = (*_ENDING_GROWTH, GrowthKind.UNCLEAR, GrowthKind.GRAPH, GrowthKind.HOST)
"""Kinds of growth that account for climbing memory, so that it is not called unknown."""


def verdict(watched: WatchedLoop) -> LeakReport:
    """Return the report on a watched loop."""
    span = watched.span
    if not span.judged:
        text = f"too few steps to tell: {span.made} with {span.warmup_steps} of warm-up"
        return _report(watched, (), (), text)
    seen = inspect(watched)
    leaks: list[tuple[RetainedGroup, Leak]] = []
    others: list[tuple[RetainedGroup, Growth]] = []
    for each in seen.found:
        other = _other_growth(each)
        if other is None:
            leaks.append((each, leak_of(each)))
        else:
            others.append((each, other))
    leaks = with_models_as_one(leaks)
    leaks.sort(key=lambda pair: -pair[1].bytes_per_step)
    listed = [leak for _, leak in leaks]
    grown = [other for _, other in others]
    grown += seen.growth
    grown += _reserved(watched)
    graph = graph_growth(watched.steps, watched.span.made)
    grown += host_growth(watched, listed, graph, counts_tensors=not seen.is_blind)
    is_told = listed or any(each.kind == GrowthKind.GRAPH for each in grown)
    if graph is not None and not is_told:
        # the growth of the heap is not clear, but the graph's nodes are counted exactly
        grown.append(graph.growth)
    sums = _balance(watched, [*leaks, *others])
    if not listed and not any(each.kind in _EXPLAINED and each.bytes_per_step for each in grown):
        grown += _unknown(watched, sums)
    text = _headline(watched, listed, grown, sums, graph)
    if seen.notes and not listed:
        text = f"not clear: {seen.notes[0]}"
    elif seen.is_blind:
        text = f"not clear: {NO_BLOCKS} (see tensorlens doctor)"
    notes = (*_left_out(seen), *_hidden(listed), *seen.notes)
    return _report(watched, tuple(listed), tuple(grown), text, notes, sums)


def _left_out(seen: Inspection) -> tuple[str, ...]:
    """Return the note on groups that grew but were not looked at."""
    if not seen.skipped:
        return ()
    nbytes = format_bytes(round(sum(seen.skipped)))
    groups = counted(len(seen.skipped), "smaller group")
    return (f"{groups} left something behind too, {nbytes} a step: not looked at",)


def _hidden(leaks: Sequence[Leak]) -> tuple[str, ...]:
    """Return the note on holders hidden from the collector, and so from the search."""
    count = frozen_objects()
    if not count or not any(not leak.path or UNSEEN in leak.path for leak in leaks):
        return ()
    return (
        f"gc.freeze() hides {count:,} objects: what they hold is not found. Watch some steps"
        " before it is called, or call gc.unfreeze() first",
    )


def _other_growth(found: RetainedGroup) -> Growth | None:
    """Return a group as growth that is no leak, or not surely one; None for a leak."""
    nbytes, judgement = found.bytes_per_step, found.judgement
    if found.fate is Fate.GARBAGE and found.watched.span.is_collected:
        circle = f": {found.cycle}" if found.cycle is not None else ""
        kind, why = GrowthKind.GARBAGE, f"garbage that waited for the collector, a cycle{circle}"
    elif found.fate is Fate.RENEWED:
        why = "as many of them are freed, each takes the place of an older one"
        kind = GrowthKind.TURNOVER
    elif found.bounds and all(found.bounds):
        container = next(filter(None, found.bounds))
        kind, why = GrowthKind.FILLING, f"{container.text} is filling up, {end_of(container)}"
    elif judgement.certainty == UNCLEAR:
        kind, why = GrowthKind.UNCLEAR, judgement.reason
    else:
        return None
    rate = f"{counted_about(judgement.tensors_per_step)}, {format_bytes(round(nbytes))} a step"
    text = f"{rate}, made at {place_of(found.line)}: {why}"
    grown = 0.0 if kind is GrowthKind.TURNOVER else nbytes
    return Growth(kind, text, grown, found.path, found.device)


def _reserved(watched: WatchedLoop) -> list[Growth]:
    """Return the growth of devices whose reserved memory grew while the allocated did not."""
    found = []
    for device in watched.figures[-1].reserved:
        if device == "cpu":
            continue
        allocated = watched.allocated(device)
        reserved = watched.reserved(device)
        if growing(reserved) is not None and growing(allocated) is None:
            mean = (reserved[-1] - reserved[0]) / (len(reserved) - 1) / watched.span.stride
            text = (
                f"{device} reserved grew {format_bytes(round(mean))} a step while what is "
                "allocated did not: the allocator's cache, or fragmentation"
            )
            found.append(Growth(GrowthKind.RESERVED, text, mean, "", device))
    return found


def _unknown(watched: WatchedLoop, sums: Mapping[str, Balance]) -> list[Growth]:
    """Return the growth of devices whose memory climbed mostly for an unknown reason."""
    found = []
    for device, each in sums.items():
        if 2 * each.unknown > each.growth and climbs(watched.allocated(device)):
            text = (
                f"{device}: {format_bytes(each.unknown)} in {counted(each.steps, 'step')}, in no "
                "tensor that is known to stay: what held it may have ended"
            )
            mean = each.unknown / each.steps
            found.append(Growth(GrowthKind.UNKNOWN, text, mean, "", device))
    return found


def _balance(
    watched: WatchedLoop, grown: Sequence[tuple[RetainedGroup, Leak | Growth]]
) -> dict[str, Balance]:
    """Return the balance of each device whose allocated bytes are known.

    Args:
        watched: the samples.
        grown: what grew in the blocks that are left.
    """
    span = watched.span
    # without the last stretch, whose blocks may be in use
    first, last = watched.figures[span.warmup].allocated, watched.figures[-2].allocated
    steps = span.judged_steps
    found = {}
    for device, level in last.items():
        before = first.get(device, 0)
        if UNKNOWN in (level, before):
            continue
        parts = dict.fromkeys(("leaks", "garbage", "filling", "rounding"), 0.0)
        for group, each in grown:
            part = "leaks" if isinstance(each, Leak) else str(each.kind)
            if each.device == device and part in parts:
                parts[part] += each.bytes_per_step
                parts["rounding"] += (group.rounding_factor - 1) * each.bytes_per_step
        known = {part: round(steps * nbytes) for part, nbytes in parts.items()}
        growth = level - before
        rest = growth - sum(known.values())
        found[device] = Balance(
            steps=steps, growth=growth, **known, unknown=max(0, rest), freed=max(0, -rest)
        )
    return found


def _headline(
    watched: WatchedLoop,
    leaks: Sequence[Leak],
    others: Sequence[Growth],
    sums: Mapping[str, Balance],
    graph: GraphGrowth | None,
) -> str:
    count = watched.span.judged_steps
    graphs = [other for other in others if other.kind == GrowthKind.GRAPH]
    if leaks:
        tensors = sum(leak.tensors_per_step for leak in leaks)
        kinds = {leak.kind for leak in leaks}
        kind = kinds.pop() if len(kinds) == 1 else LeakKind.LEAK
        likely = "" if any(leak.certainty == CERTAIN for leak in leaks) else "likely "
        if likely and kind is not LeakKind.GARBAGE:
            likely += "a "
        what = likely + ("garbage (the collector is off)" if kind is LeakKind.GARBAGE else kind)
        number, nbytes = counted_about(tensors), _sum_of(leaks)
        if graphs and not graphs[0].path:
            its = "it keeps" if tensors == 1 else "they keep"
            kept = f"probably the autograd graph that {its} ({_sum_of(graphs)})"
            parts = f"{number} ({nbytes}) and {kept}"
            return f"{what}: {_sum_of([*leaks, *graphs])} stay behind in each step: {parts}"
        return f"{what}: {number} and {nbytes} stay behind in each step"
    unclear = [each for each in others if each.kind == GrowthKind.UNCLEAR]
    if unclear:
        amount = f"{_sum_of(unclear)} a step more, but not from each of them"
        more = _MORE_STEPS_FACTOR * (watched.span.made - watched.span.warmup_steps)
        return f"not clear after {count} steps: {amount}; watch {more} steps or more"
    if graphs and graph is not None:
        its = f"the autograd graph of {graph.name}"
        return f"no tensors are lost in {_any(count)}, but {its} {graph.rate}"
    if any(each.kind == GrowthKind.HOST for each in others):
        return f"no tensors stay behind in {_any(count)}, but host memory grows"
    grown = [
        f"{_sum_of(mine)} a step {words}"
        for kind, words in _ENDING_GROWTH.items()
        if (mine := [each for each in others if each.kind == kind and each.bytes_per_step])
    ]
    if grown:
        return f"no tensors are lost in {count} steps: {', and '.join(grown)}"
    climbed = [each.device for each in others if each.kind == GrowthKind.UNKNOWN]
    unexplained = [
        each.unknown
        for device, each in sums.items()
        if device in climbed or 2 * each.unknown > watched.allocated(device)[0]
    ]
    if any(unexplained):
        return (
            f"no tensor is known to stay behind in {_any(count)}, but memory is "
            f"{format_bytes(sum(unexplained))} more at the end"
        )
    if count == 1:
        # blocks of the last step may be in use until the next one
        return "too few steps to tell: one judged"
    return f"no leak: nothing stays behind in any of {count} steps"


def _any(count: int) -> str:
    return "the one step judged" if count == 1 else f"any of {count} steps"


def _sum_of(several: Sequence[Leak | Growth]) -> str:
    return format_bytes(round(sum(each.bytes_per_step for each in several)))


def _report(
    watched: WatchedLoop,
    leaks: tuple[Leak, ...],
    others: tuple[Growth, ...],
    text: str,
    notes: tuple[str, ...] = (),
    sums: dict[str, Balance] | None = None,
) -> LeakReport:
    devices = watched.figures[-1].allocated
    return LeakReport(
        leaks=leaks,
        others=others,
        steps=max(0, watched.span.made - watched.span.warmup_steps),
        warmup=min(watched.span.warmup_steps, watched.span.made),
        allocated={
            device: tuple(each.allocated.get(device, 0) for each in watched.figures[1:])
            for device in devices
        },
        verdict=text,
        notes=(*notes, *watched.steps.notes()),
        stride=watched.span.stride,
        balance=sums or {},
    )
