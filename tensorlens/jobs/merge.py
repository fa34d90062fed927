"""Puts the ranks of a job beside each other: from files, or over torch.distributed's store."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median_low
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.jobs.rank_report import RankReport, rank_of, rank_report
from tensorlens.jobs.report import ItemDifference, JobReport, OddRank, RankFigures
from tensorlens.records.names import common_name, without_indices
from tensorlens.records.run import run_over

_MOST_ITEMS = 20


def merged(records: Mapping[str, Any]) -> JobReport:
    """Return the ranks' records as one report.

    Args:
        records: file to record, all of one kind; the rank is what the record or the name says.

    Raises:
        UsageError: a rank is not known or there twice, or the records are of several kinds.
    """
    reports = []
    for file, record in records.items():
        rank = rank_of(record, file)
        if rank is None:
            raise UsageError(f"{file}: its rank is not known: name it like run.rank0.tlens")
        reports.append(rank_report(record, file, *rank))
    return replace(job_report(reports), run=run_over(records.values()))


def job_report(reports: Sequence[RankReport]) -> JobReport:
    """Return the report on some ranks.

    Raises:
        UsageError: there are two of one rank, or they are of several kinds.
    """
    by_rank: dict[int, RankReport] = {}
    for each in reports:
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
    stages = _stages(ordered)
    odds = filter(None, map(_odd, stages))
    numbers = {each.rank: number for number, group in enumerate(stages) for each in group}
    stage_of = numbers.get if len(stages) > 1 else lambda rank: None
    return JobReport(
        kind=ordered[0].kind,
        item=ordered[0].item,
        ranks=tuple(
            RankFigures(each.rank, each.file, each.device, each.figures, stage_of(each.rank))
            for each in ordered
        ),
        world_size=size,
        missing=tuple(rank for rank in range(expected) if rank not in by_rank),
        odd=max(odds, key=lambda each: abs(each.difference), default=None),
        notes=tuple(note for each in ordered for note in each.notes),
    )


def _stages(reports: Sequence[RankReport]) -> Sequence[Sequence[RankReport]]:
    """Return the ranks of each stage of a pipeline: no two stages have a parameter in common."""
    groups: dict[frozenset[str], list[RankReport]] = {}
    for each in reports:
        groups.setdefault(each.parameters, []).append(each)
    is_apart = sum(map(len, groups)) == len(frozenset().union(*groups))
    return [*groups.values()] if is_apart and all(groups) else [reports]


def _odd(reports: Sequence[RankReport]) -> OddRank | None:
    common = (name for name in reports[0].figures if all(name in each.figures for each in reports))
    figure = next(common, None)
    if figure is None:
        return None
    values = {each.rank: each.figures[figure] for each in reports}
    middle = median_low(values.values())
    # of several that are as far away the one with more
    rank = max(values, key=lambda each: (abs(values[each] - middle), values[each], -each))
    if values[rank] == middle:
        return None
    other = min(values, key=lambda each: (abs(values[each] - middle), each))
    by_rank = {each.rank: each for each in reports}
    differences = _differences(by_rank[rank], by_rank[other])
    shown, hidden = differences[:_MOST_ITEMS], differences[_MOST_ITEMS:]
    rest, count = sum(each.difference for each in hidden), sum(each.count for each in hidden)
    return OddRank(rank, other, figure, values[rank] - middle, tuple(shown), rest, rest_count=count)


def _differences(here: RankReport, there: RankReport) -> list[ItemDifference]:
    """Return what one rank has more or less of than another, equal layers together."""
    groups: dict[tuple[str, int, int, str], list[str]] = {}
    lines = {**there.lines, **here.lines}
    for name in {**here.items, **there.items}:
        nbytes, other = here.items.get(name, 0), there.items.get(name, 0)
        if nbytes != other:
            alike = without_indices(name) if here.item == "tensor" else name
            groups.setdefault((alike, nbytes, other, lines.get(name, "")), []).append(name)
    found = [
        ItemDifference(
            common_name(names), nbytes * len(names), other * len(names), len(names), line
        )
        for (_, nbytes, other, line), names in groups.items()
    ]
    return sorted(found, key=lambda each: (-abs(each.difference), each.name))


_calls = itertools.count()
"""Every rank makes the same calls in the same order, so that their numbers are the same."""


def gather(record: Any) -> JobReport | None:
    """Return on rank 0 what the records of all ranks say beside each other; None on the others.

    Every rank has to call it, as often as the others. A few kilobytes go to rank 0, which alone
    waits: through the store by which the ranks have found each other, so that no collective runs
    and no device is touched. Ranks that have not called it at the store's timeout (``timeout`` of
    ``init_process_group``) are missing in the report. A process outside of a group is a job of one.

    Args:
        record: this rank's snapshot, recording, line report or leak report; the same kind on all.

    Raises:
        UsageError: it is another record, has no bytes, or ranks gave several kinds.
        torch.distributed.DistNetworkError: the store is lost.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return job_report([rank_report(record, "this process", 0, 1)])
    call, rank, size = next(_calls), distributed.get_rank(), distributed.get_world_size()
    given: RankReport | UsageError
    try:
        given = rank_report(record, f"rank {rank}", rank, size)
    except UsageError as error:
        # rank 0 waits for this rank as well
        given = error
    store = distributed.distributed_c10d._get_default_store()
    store = distributed.PrefixStore(f"tensorlens/{call}", store)
    reports = [given]
    if rank:
        store.set(str(rank), pickle.dumps(given))
    elif distributed.get_backend() != _OF_ESTIMATES:
        reports += _received(store, [*map(str, range(1, size))], distributed.DistStoreError)
    for each in reports:
        if isinstance(each, UsageError):
            raise each
    return None if rank else job_report([each for each in reports if isinstance(each, RankReport)])


_OF_ESTIMATES = "fake"
"""Backend of the group in which one rank runs without the others, and without a store."""


def _received(
    store: Any, keys: list[str], timeout: type[Exception]
) -> Iterator[RankReport | UsageError]:
    """Give what ranks gave until the store's timeout."""
    with suppress(timeout):
        store.wait(keys)
    for key in keys:
        if store.check([key]):
            yield pickle.loads(store.get(key))
            store.delete_key(key)
