"""Models that a framework's runtime holds: what is made of each in a step is one leak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorlens.leaks.growth.retained import RetainedGroup
from tensorlens.leaks.report import BelowLine, Leak
from tensorlens.records.tensors import SourceLine

_OF_A_MODEL = ("parameter", "optimizer")
_RUNTIME = "TensorFlow's runtime (no reference in Python)"


def with_models_as_one(
    leaks: Sequence[tuple[RetainedGroup, Leak]],
) -> list[tuple[RetainedGroup, Leak]]:
    """Return leaks with what a runtime holds told as one: models that are made in each step."""
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
    """Tell whether a framework's runtime holds something, which Python sees nothing of."""
    return found.words.unseen is not None and not found.is_held and found.cycle is None


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
