"""The verdict on some steps: what grows, which line made it, who holds it, and what does not."""

from __future__ import annotations

import gc
import linecache
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensorlens import collector
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
from tensorlens.leaks.host import HostSample, host_growth
from tensorlens.leaks.host_arrays import growing_arrays
from tensorlens.leaks.inspection import Inspection, inspect_again, inspect_steps
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
from tensorlens.records.references import ReferencePath
from tensorlens.records.tensors import SourceLine
from tensorlens.render.figures import counted_about
from tensorlens.render.source import place
from tensorlens.units import format_bytes

_MANY = 24
"""Steps after which a container that none of them emptied is taken to be never emptied."""
_TIMES_MORE = 3
"""How many times as many steps would tell what is not clear."""
_OF_A_MODEL = ("parameter", "optimizer")
_RUNTIME = "TensorFlow's runtime (no reference in Python)"
_HARMLESS = {
    GrowthKind.FILLING: "go into containers with an end",
    GrowthKind.GARBAGE: "wait for the garbage collector",
}
"""Kinds of growth that end, and the headline's words for them."""
_CONTAINERS = ("item", "key", "queue", "cache")

__all__ = ["LoopSamples", "verdict"]


def verdict(watched: LoopSamples) -> LeakReport:
    """Return what grew in the steps that were watched.

    The collector runs once, at the end, and only where something grew that nothing but it could
    tell, and where the program lets it run at all: what it frees is garbage and no leak.
    """
    if len(watched.judged) < 1:
        text = f"too few steps to tell: {watched.made} with {watched.warmup_steps} of warm-up"
        return _report(watched, (), (), text)
    # or it might free what is about to be looked at
    with collector.paused():
        seen = inspect_steps(watched)
    dead = collect(watched, seen)
    with collector.paused():
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
    leaks = _of_models(leaks)
    leaks.sort(key=lambda pair: -pair[1].bytes_per_step)
    listed = [leak for _, leak in leaks]
    grown = [other for _, other in others]
    grown += unclear
    grown += _reserved(watched)
    grown += _host(watched, listed)
    sums = balance(watched, [(each.taken, leak) for each, leak in leaks], others)
    grown += _gone(watched, sums)
    text = _sentence(watched, listed, grown, sums)
    return _report(watched, tuple(listed), tuple(grown), text, _left_out(seen), sums)


def _is_of_runtime(found: RetainedGroup, leak: Leak) -> bool:
    """Tell whether a framework's runtime holds something, which Python sees nothing of."""
    return found.words.unseen is not None and not found.is_held and found.cycle is None


def _of_models(leaks: Sequence[tuple[RetainedGroup, Leak]]) -> list[tuple[RetainedGroup, Leak]]:
    """Return leaks with what a runtime holds told as one: models that are made in each step."""
    joined = [pair for pair in leaks if not _is_of_runtime(*pair)]
    devices: dict[str, list[tuple[RetainedGroup, Leak]]] = {}
    for found, leak in leaks:
        if _is_of_runtime(found, leak):
            devices.setdefault(found.device, []).append((found, leak))
    for several in devices.values():
        is_model = any(leak.role in _OF_A_MODEL for _, leak in several)
        if len(several) == 1 and not is_model:
            joined += several
            continue
        several.sort(key=lambda pair: -pair[1].bytes_per_step)
        found, first = several[0]
        leak = replace(
            first,
            tensors_per_step=sum(leak.tensors_per_step for _, leak in several),
            bytes_per_step=sum(leak.bytes_per_step for _, leak in several),
            nodes_per_step=sum(leak.nodes_per_step for _, leak in several),
            path=_RUNTIME,
            paths=(),
            advice=found.words.model if is_model else first.advice,
            below=_rows([leak for _, leak in several]),
        )
        joined.append((found, leak))
    return joined


def _rows(leaks: Sequence[Leak]) -> tuple[BelowLine, ...]:
    """Return what leaks that are told as one consist of beside the first, by line and role."""
    own = [
        BelowLine(
            leak.born,
            leak.bytes_per_step - sum(each.bytes_per_step for each in leak.below),
            leak.tensors_per_step,
            leak.role,
            leak.source,
        )
        for leak in leaks[1:]
    ]
    sums: dict[tuple[SourceLine | None, str], BelowLine] = {}
    for each in (*own, *(below for leak in leaks for below in leak.below)):
        known = sums.get((each.born, each.role))
        if known is not None:
            each = replace(
                each,
                bytes_per_step=known.bytes_per_step + each.bytes_per_step,
                tensors_per_step=known.tensors_per_step + each.tensors_per_step,
            )
        sums[each.born, each.role] = each
    return tuple(sorted(sums.values(), key=lambda each: -each.bytes_per_step))


def _left_out(seen: Inspection) -> tuple[str, ...]:
    """Return the note on what grew but was not looked at."""
    if not seen.unseen:
        return ()
    groups = "1 smaller group" if seen.unseen == 1 else f"{seen.unseen} smaller groups"
    nbytes = format_bytes(round(seen.unseen_bytes_per_step))
    return (f"{groups} left something behind too, {nbytes} a step: not looked at",)


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
    line = watched.steps.line(found.birth)
    return "a line that is not known" if line is None else place(line, function=True)


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
    if not found.paths and found.is_graphs_cycle:
        reason += "; a cycle through autograd holds it, which the collector cannot free"
    elif found.is_unseen or not found.paths:
        reason += "; what holds it cannot be seen from Python"
        reason += f" ({found.words.unseen})" if found.words.unseen else ""
    if certainty == CERTAIN and watched.made < _MANY and _may_be_emptied(found.paths):
        text = f"; a cache cleared less often than every {watched.made} steps would look the same"
        return LIKELY, f"{reason}{text}: run {_MANY} or more steps to be sure"
    return certainty, reason


def _may_be_emptied(paths: Sequence[ReferencePath]) -> bool:
    return any(each.kind in _CONTAINERS for way in paths for each in way.references)


def _leak(found: RetainedGroup, watched: LoopSamples) -> Leak:
    line = watched.steps.line(found.birth)
    source = _source(line)
    facts = Facts(
        steps=watched.span.steps,
        is_in_array=found.is_in_array,
        is_cycle=found.is_graphs_cycle,
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
        BelowLine(line, each.nbytes, each.tensors, each.role, _source(line)) for line, each in lines
    )


def _source(line: SourceLine | None) -> str:
    return "" if line is None else linecache.getline(line.filename, line.lineno).strip()


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
        allocated = _levels(watched, device, reserved=False)
        reserved = _levels(watched, device, reserved=True)
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
        levels = _levels(watched, device, reserved=False)
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
    line = watched.steps.line(max(grown, key=grown.__getitem__)) if grown else None
    return "a line that is not known" if line is None else place(line, function=True)


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


def _levels(watched: LoopSamples, device: str, reserved: bool) -> list[int]:
    figures = watched.figures[watched.warmup :]
    sources = [each.reserved if reserved else each.allocated for each in figures]
    return [source.get(device, 0) for source in sources]


def _sentence(
    watched: LoopSamples,
    leaks: Sequence[Leak],
    others: Sequence[Growth],
    sums: Mapping[str, Balance],
) -> str:
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
        return f"no tensors stay behind in each of {count} steps, but host memory grows"
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
        if 2 * each.unknown > _levels(watched, device, reserved=False)[0]
    ]
    if any(rest):
        return (
            f"no tensor is known to stay behind in each of {count} steps, but memory is "
            f"{format_bytes(sum(rest))} more at their end"
        )
    return f"no leak: nothing stays behind in each of {count} steps"


def _sum_of(several: Sequence[Leak | Growth]) -> str:
    return format_bytes(round(sum(each.bytes_per_step for each in several)))


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
