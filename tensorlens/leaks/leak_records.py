"""Leaks of a report: one for each group that stays behind, one for all groups of a runtime."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tensorlens.leaks.advice import Facts, advice
from tensorlens.leaks.growth.growth_test import CERTAIN, LIKELY
from tensorlens.leaks.growth.retained import Fate, RetainedGroup
from tensorlens.leaks.report import BelowLine, Certainty, Leak, LeakKind, source_of
from tensorlens.records.references import ReferencePath
from tensorlens.records.tensors import SourceLine

_ENOUGH_STEPS = 24
"""Steps after which a container that none of them emptied counts as never emptied."""
_KINDS = {Fate.GARBAGE: LeakKind.GARBAGE, Fate.CONSUMED: LeakKind.QUEUE}
_CONTAINERS = ("item", "key", "queue", "cache")
_COLLECT = "leave the collector on, or call gc.collect() now and then; or break the cycle"
_OF_A_MODEL = ("parameter", "optimizer")
_RUNTIME = "TensorFlow's runtime (no reference in Python)"


def _certainty(found: RetainedGroup) -> tuple[Certainty, str]:
    made = found.watched.span.made
    certainty, reason = found.judgement.certainty, found.judgement.reason
    if found.fate is Fate.GARBAGE:
        return certainty, f"{reason}; only a cycle holds it, and nothing runs the collector"
    if found.is_unseen or not found.paths:
        reason += "; what holds it cannot be seen from Python"
        reason += f" ({found.words.unseen})" if found.words.unseen else ""
    if certainty == CERTAIN and made < _ENOUGH_STEPS and _may_be_emptied(found.paths):
        text = f"; a cache cleared less often than every {made} steps would look the same"
        return LIKELY, f"{reason}{text}: run {_ENOUGH_STEPS} or more steps to be sure"
    return certainty, reason


def _may_be_emptied(paths: Sequence[ReferencePath]) -> bool:
    return any(each.kind in _CONTAINERS for path in paths for each in path.references)


def leak_of(found: RetainedGroup) -> Leak:
    """Return the record of a group that stays behind."""
    watched, line = found.watched, found.line
    source = source_of(line)
    facts = Facts(
        steps=watched.span.judged_steps,
        is_in_array=found.is_in_array,
        is_replaced=found.fate is Fate.REPLACED,
        role=found.role,
        variable=_variable(source),
        carried=_carried(source),
        words=found.words,
    )
    certainty, reason = _certainty(found)
    todo = advice(found.paths, found.example, facts)
    if found.fate is Fate.GARBAGE:
        todo = _COLLECT
    return Leak(
        born=line,
        tensors_per_step=found.judgement.tensors_per_step,
        bytes_per_step=found.bytes_per_step,
        path=found.path,
        paths=found.paths,
        role=found.role,
        device=found.device,
        example=found.example,
        certainty=certainty,
        reason=reason,
        advice=todo,
        source=source,
        kind=_KINDS.get(found.fate, LeakKind.LEAK),
        below=found.below,
        nodes_per_step=found.nodes,
    )


def _variable(source: str) -> str | None:
    """Return the variable that a line assigns to: ``loss`` of ``loss = criterion(y)``."""
    targets, _ = _assignment(source)
    return targets if targets.isidentifier() else None


def _carried(source: str) -> str | None:
    """Return the variable that a line uses and replaces: ``h`` of ``out, h = rnn(x, h)``."""
    targets, taken = (re.findall(r"[A-Za-z_][\w.]*", side) for side in _assignment(source))
    both = {each for each in targets if any(f"{name}.".startswith(f"{each}.") for name in taken)}
    return both.pop() if len(both) == 1 else None


def _assignment(source: str) -> tuple[str, str]:
    """Return the left and the right side of a line's ``=``; empty if it has none."""
    targets, equals, value = source.partition("=")
    return (targets.strip(), value) if equals and not value.startswith("=") else ("", "")


def with_models_as_one(
    leaks: Sequence[tuple[RetainedGroup, Leak]],
) -> list[tuple[RetainedGroup, Leak]]:
    """Merge the leaks that a runtime holds on one device: parts of models made in each step."""
    merged = [pair for pair in leaks if not _is_of_runtime(pair[0])]
    devices: dict[str, list[tuple[RetainedGroup, Leak]]] = {}
    for found, leak in leaks:
        if _is_of_runtime(found):
            devices.setdefault(found.device, []).append((found, leak))
    for several in devices.values():
        is_model = any(leak.role in _OF_A_MODEL for _, leak in several)
        if len(several) == 1 and not is_model:
            merged += several
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
        merged.append((found, leak))
    return merged


def _is_of_runtime(found: RetainedGroup) -> bool:
    """Return whether a framework's runtime holds a group, outside of Python."""
    return found.words.unseen is not None and not found.is_held and found.cycle is None


def _rows(leaks: Sequence[Leak]) -> tuple[BelowLine, ...]:
    """Return, by line and role, the leaks after the first and what hangs below any leak."""
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
