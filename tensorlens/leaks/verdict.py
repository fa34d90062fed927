"""The verdict on some steps: what grows, which line made it, who holds it, and what does not."""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence

from tensorlens.heap.paths import UNSEEN
from tensorlens.interpreter import frozen_objects, paused_collector
from tensorlens.leaks.advice import Facts, advice
from tensorlens.leaks.garbage import (
    collect,
    garbage_advice,
    without_garbage,
)
from tensorlens.leaks.growth.balance import balance
from tensorlens.leaks.growth.growth_test import (
    CERTAIN,
    LIKELY,
    UNCLEAR,
    Judgement,
    climbs,
    growing,
)
from tensorlens.leaks.growth.retained import RetainedGroup, end_of
from tensorlens.leaks.growth.samples import LoopSamples
from tensorlens.leaks.headline import headline
from tensorlens.leaks.host import HostSample, host_growth
from tensorlens.leaks.host_arrays import growing_arrays
from tensorlens.leaks.inspection import Inspection, inspect_again, inspect_steps
from tensorlens.leaks.line_text import place_of, source_of
from tensorlens.leaks.report import (
    Balance,
    BelowLine,
    Certainty,
    Growth,
    GrowthKind,
    Leak,
    LeakKind,
    LeakReport,
)
from tensorlens.leaks.runtime_models import with_models_as_one
from tensorlens.records.references import ReferencePath
from tensorlens.render.figures import counted, counted_about
from tensorlens.units import format_bytes

_MANY = 24
"""Steps after which a container that none of them emptied is taken to be never emptied."""
_CONTAINERS = ("item", "key", "queue", "cache")


def verdict(watched: LoopSamples) -> LeakReport:
    """Return what grew in the steps that were watched.

    The collector runs once, at the end, and only where something grew that nothing but it could
    tell, and where the program lets it run at all: what it frees is garbage and no leak.
    """
    if not watched.judged:
        text = f"too few steps to tell: {watched.made} with {watched.warmup_steps} of warm-up"
        return _report(watched, (), (), text)
    # or it might free what is about to be looked at
    with paused_collector():
        seen = inspect_steps(watched)
    dead = collect(watched, seen)
    with paused_collector():
        found, unclear = inspect_again(watched, seen, dead)
    found = [without_garbage(each, dead, watched) for each in found]
    leaks: list[tuple[RetainedGroup, Leak]] = []
    others: list[tuple[float, Growth]] = []
    for each in found:
        other = _no_leak(each, watched)
        if other is not None:
            others.append((each.taken, other))
        elif each.judgement.certainty == UNCLEAR:
            others.append((each.taken, _unclear(each, watched)))
        else:
            leaks.append((each, _leak(each, watched)))
    leaks = with_models_as_one(leaks)
    leaks.sort(key=lambda pair: -pair[1].bytes_per_step)
    listed = [leak for _, leak in leaks]
    grown = [other for _, other in others]
    grown += unclear
    grown += _reserved(watched)
    grown += _host(watched, listed)
    sums = balance(watched, [(each.taken, leak) for each, leak in leaks], others)
    grown += _gone(watched, sums)
    text = headline(watched, listed, grown, sums)
    notes = (*_left_out(seen), *_hidden(listed))
    return _report(watched, tuple(listed), tuple(grown), text, notes, sums)


def _left_out(seen: Inspection) -> tuple[str, ...]:
    """Return the note on what grew but was not looked at."""
    if not seen.unseen:
        return ()
    nbytes = format_bytes(round(seen.unseen_bytes_per_step))
    groups = counted(seen.unseen, "smaller group")
    return (f"{groups} left something behind too, {nbytes} a step: not looked at",)


def _hidden(leaks: Sequence[Leak]) -> tuple[str, ...]:
    """Return the note on holders that the collector, and so the search, does not see."""
    count = frozen_objects()
    if not count or not any(not leak.path or UNSEEN in leak.path for leak in leaks):
        return ()
    return (
        f"gc.freeze() hides {count:,} objects: what they hold is not found. Watch some steps"
        " before it is called, or call gc.unfreeze() first",
    )


def _no_leak(found: RetainedGroup, watched: LoopSamples) -> Growth | None:
    """Return why a group is no leak, if it is none."""
    nbytes = found.bytes_per_step
    what = f"{_rate(found.judgement, nbytes)}, made at {_where(found, watched)}"
    path = str(found.paths[0]) if found.paths else str(found.cycle or "")
    if found.is_garbage and not watched.uncollected:
        circle = f": {found.cycle}" if found.cycle is not None else ""
        text = f"{what}: garbage that waited for the collector, a cycle{circle}"
        return Growth(GrowthKind.GARBAGE, text, nbytes, path, found.device)
    if found.is_renewed:
        text = f"{what}: as many of them are freed, each takes the place of an older one"
        return Growth(GrowthKind.TURNOVER, text, 0.0, path, found.device)
    if found.bounds and all(found.bounds):
        container = next(filter(None, found.bounds))
        text = f"{what}: {container.text} is filling up, {end_of(container)}"
        return Growth(GrowthKind.FILLING, text, nbytes, path, found.device)
    return None


def _where(found: RetainedGroup, watched: LoopSamples) -> str:
    return place_of(watched.steps.line(found.birth))


def _unclear(found: RetainedGroup, watched: LoopSamples) -> Growth:
    nbytes = found.bytes_per_step
    where = _where(found, watched)
    text = f"{_rate(found.judgement, nbytes)}, made at {where}: {found.judgement.reason}"
    path = str(found.paths[0]) if found.paths else ""
    return Growth(GrowthKind.UNCLEAR, text, nbytes, path, found.device)


def _certainty(found: RetainedGroup, watched: LoopSamples) -> tuple[Certainty, str]:
    """Return how sure it is that something is a leak, and why."""
    certainty, reason = found.judgement.certainty, found.judgement.reason
    if found.is_garbage:
        if watched.is_frozen:
            return certainty, f"{reason}; gc.freeze() hides it from the collector"
        return certainty, f"{reason}; only a cycle holds it, and nothing runs the collector"
    if found.is_unseen or not found.paths:
        reason += "; what holds it cannot be seen from Python"
        reason += f" ({found.words.unseen})" if found.words.unseen else ""
    if certainty == CERTAIN and watched.made < _MANY and _may_be_emptied(found.paths):
        text = f"; a cache cleared less often than every {watched.made} steps would look the same"
        return LIKELY, f"{reason}{text}: run {_MANY} or more steps to be sure"
    return certainty, reason


def _may_be_emptied(paths: Sequence[ReferencePath]) -> bool:
    return any(each.kind in _CONTAINERS for path in paths for each in path.references)


def _leak(found: RetainedGroup, watched: LoopSamples) -> Leak:
    line = watched.steps.line(found.birth)
    source = source_of(line)
    facts = Facts(
        steps=watched.span.steps,
        is_in_array=found.is_in_array,
        is_replaced=found.is_replaced,
        role=found.role,
        variable=_variable(source),
        carried=_carried(source),
        words=found.words,
    )
    certainty, reason = _certainty(found, watched)
    todo = advice(found.paths, found.example, facts)
    return Leak(
        born=line,
        tensors_per_step=found.judgement.tensors_per_step,
        bytes_per_step=found.bytes_per_step,
        path=str(found.paths[0]) if found.paths else str(found.cycle or ""),
        paths=found.paths,
        role=found.role,
        device=found.device,
        example=found.example,
        certainty=certainty,
        reason=reason,
        advice=garbage_advice(watched) if found.is_garbage else todo,
        source=source,
        kind=_kind(found),
        below=_below(found, watched),
        nodes_per_step=found.nodes,
    )


def _kind(found: RetainedGroup) -> LeakKind:
    if found.is_garbage:
        return LeakKind.GARBAGE
    return LeakKind.QUEUE if found.is_population else LeakKind.LEAK


def _below(found: RetainedGroup, watched: LoopSamples) -> tuple[BelowLine, ...]:
    lines = [(watched.steps.line(each.birth), each) for each in found.below]
    return tuple(
        BelowLine(line, each.nbytes, each.tensors, each.role, source_of(line))
        for line, each in lines
    )


def _variable(source: str) -> str | None:
    """Return the variable that a line assigns to: ``loss`` of ``loss = criterion(y)``."""
    targets, _ = _assignment(source)
    return targets if targets.isidentifier() else None


def _carried(source: str) -> str | None:
    """Return what a line takes and replaces: ``h`` of ``out, h = rnn(x, h)``, or ``self.h``."""
    targets, taken = (re.findall(r"[A-Za-z_][\w.]*", side) for side in _assignment(source))
    both = {each for each in targets if any(f"{name}.".startswith(f"{each}.") for name in taken)}
    return both.pop() if len(both) == 1 else None


def _assignment(source: str) -> tuple[str, str]:
    """Return what is left and right of a line's ``=``; both are empty where it has none."""
    targets, equals, value = source.partition("=")
    return (targets.strip(), value) if equals and not value.startswith("=") else ("", "")


def _rate(judgement: Judgement, nbytes: float) -> str:
    return f"{counted_about(judgement.tensors_per_step)}, {format_bytes(round(nbytes))} a step"


def _reserved(watched: LoopSamples) -> list[Growth]:
    """Return devices whose allocator took more while what is allocated stayed."""
    found = []
    for device in watched.figures[-1].reserved:
        if device == "cpu":
            continue
        allocated = watched.allocated(device)
        reserved = watched.reserved(device)
        if growing(reserved) is not None and growing(allocated) is None:
            mean = (reserved[-1] - reserved[0]) / (len(reserved) - 1) / watched.stride
            text = (
                f"{device} reserved grew {format_bytes(round(mean))} a step while what is "
                "allocated did not: the allocator's cache, or fragmentation"
            )
            found.append(Growth(GrowthKind.RESERVED, text, mean, "", device))
    return found


def _gone(watched: LoopSamples, sums: Mapping[str, Balance]) -> list[Growth]:
    """Return devices whose memory climbed while nothing that is left now tells why."""
    found = []
    now = watched.steps.figures().allocated
    for device, each in sums.items():
        levels = watched.allocated(device)
        if 2 * each.unknown <= each.growth or not climbs(levels):
            continue
        if levels[-1] - now.get(device, 0) < each.unknown // 2:
            continue
        mean = each.unknown / each.steps
        text = (
            f"{device}: {format_bytes(round(mean))} a step stayed while the loop ran and is freed "
            f"now: what held it has ended; most of it was made at {_most_grown(watched)}"
        )
        found.append(Growth(GrowthKind.GONE, text, mean, "", device))
    return found


def _most_grown(watched: LoopSamples) -> str:
    """Return the line whose blocks grew most while the loop ran."""
    first, last = watched.figures[watched.warmup].lines, watched.figures[-1].lines
    grown = {birth: size - first.get(birth, (0, 0))[1] for birth, (_, size) in last.items()}
    return place_of(watched.steps.line(max(grown, key=grown.__getitem__)) if grown else None)


def _host(watched: LoopSamples, leaks: Sequence[Leak]) -> list[Growth]:
    """Return what of the host's memory grew without tensors."""

    def collected() -> HostSample | None:
        if watched.host_now is None or watched.uncollected:
            return None
        gc.collect()
        return watched.host_now()

    return host_growth(
        watched.host,
        watched.warmup_steps,
        tensors_per_step=sum(leak.tensors_per_step for leak in leaks),
        nodes_per_step=sum(leak.nodes_per_step for leak in leaks),
        lines=watched.lines_kept,
        arrays=growing_arrays,
        collected=collected,
    )


def _report(
    watched: LoopSamples,
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
        steps=max(0, watched.made - watched.warmup_steps),
        warmup=min(watched.warmup_steps, watched.made),
        allocated={
            device: tuple(each.allocated.get(device, 0) for each in watched.figures[1:])
            for device in devices
        },
        verdict=text,
        notes=(*notes, *watched.steps.notes()),
        stride=watched.stride,
        balance=sums or {},
    )
