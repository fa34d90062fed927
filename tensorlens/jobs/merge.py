"""Puts the ranks of a job beside each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.jobs.parts import Part, part, rank_of
from tensorlens.jobs.report import ItemDifference, JobReport, OddRank, RankFigures

_MOST_ITEMS = 20


def merged(records: Mapping[str, Any]) -> JobReport:
    """Return the ranks' records as one report.

    Args:
        records: file to record, all of one kind; the rank is what the record or the name says.

    Raises:
        UsageError: a rank is not known or there twice, or the records are of several kinds.
    """
    parts = []
    for file, record in records.items():
        rank = rank_of(record, file)
        if rank is None:
            raise UsageError(f"{file}: its rank is not known: name it like run.rank0.tlens")
        parts.append(part(record, file, *rank))
    return of_parts(parts)


def of_parts(parts: Sequence[Part]) -> JobReport:
    """Return the report on some ranks.

    Raises:
        UsageError: there are two of one rank, or they are of several kinds.
    """
    by_rank: dict[int, Part] = {}
    for each in parts:
        other = by_rank.setdefault(each.rank, each)
        if other is not each:
            raise UsageError(f"{other.file} and {each.file} are both of rank {each.rank}")
    if not by_rank:
        raise UsageError("there are no records to compare: give one of each rank")
    ordered = [by_rank[rank] for rank in sorted(by_rank)]
    kinds = dict.fromkeys(each.kind for each in ordered)
    if len(kinds) != 1:
        raise UsageError(f"ranks are compared by records of one kind, not {' and '.join(kinds)}")
    size = max((each.world_size for each in ordered if each.world_size), default=None)
    expected = size or ordered[-1].rank + 1
    return JobReport(
        kind=ordered[0].kind,
        item=ordered[0].item,
        ranks=tuple(RankFigures(p.rank, p.file, p.device, p.figures) for p in ordered),
        world_size=size,
        missing=tuple(rank for rank in range(expected) if rank not in by_rank),
        odd=_odd(ordered),
        notes=tuple(note for each in ordered for note in each.notes),
    )


def _odd(parts: Sequence[Part]) -> OddRank | None:
    common = (name for name in parts[0].figures if all(name in each.figures for each in parts))
    figure = next(common, None)
    if figure is None:
        return None
    values = {each.rank: each.figures[figure] for each in parts}
    middle = median_low(values.values())
    # of several that are as far away the one with more
    rank = max(values, key=lambda each: (abs(values[each] - middle), values[each], -each))
    if values[rank] == middle:
        return None
    other = min(values, key=lambda each: (abs(values[each] - middle), each))
    items = {each.rank: each.items for each in parts}
    here, there = items[rank], items[other]
    differences = [
        ItemDifference(name, here.get(name, 0), there.get(name, 0)) for name in {**here, **there}
    ]
    differences = [each for each in differences if each.difference]
    differences.sort(key=lambda each: (-abs(each.difference), each.name))
    shown, hidden = differences[:_MOST_ITEMS], differences[_MOST_ITEMS:]
    rest = sum(each.difference for each in hidden)
    return OddRank(
        rank, other, figure, values[rank] - middle, tuple(shown), rest, rest_count=len(hidden)
    )
