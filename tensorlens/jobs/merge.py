"""Compares the ranks of a job: from files, or over torch.distributed's store."""

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

_MAX_ITEMS = 20


def merged(records: Mapping[str, Any]) -> JobReport:
    """Return one report on the records of several ranks.

    Args:
        records: file name to record, all of one kind; the record or the name tells its rank.

    Raises:
        UsageError: a rank is unknown or given twice, or the records are of several kinds.
    """
    reports = []
    for file, record in records.items():
        rank = rank_of(record, file)
        if rank is None:
            raise UsageError(f"{file}: its rank is not known: name it like run.rank0.tlens")
        reports.append(rank_report(record, file, *rank))
    return replace(job_report(reports), run=run_over(records.values()))


def job_report(reports: Sequence[RankReport]) -> JobReport:
    """Return the report on several ranks.

    Raises:
        UsageError: a rank is given twice, or the reports are of several kinds.
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
    """Group the ranks by pipeline stage: ranks of different stages share no parameter."""
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
    # at the same distance, the one with more bytes
    rank = max(values, key=lambda each: (abs(values[each] - middle), values[each], -each))
    if values[rank] == middle:
        return None
    other = min(values, key=lambda each: (abs(values[each] - middle), each))
    by_rank = {each.rank: each for each in reports}
    differences = _differences(by_rank[rank], by_rank[other])
    shown, hidden = differences[:_MAX_ITEMS], differences[_MAX_ITEMS:]
    rest, count = sum(each.difference for each in hidden), sum(each.count for each in hidden)
    return OddRank(rank, other, figure, values[rank] - middle, tuple(shown), rest, rest_count=count)


def _differences(here: RankReport, there: RankReport) -> list[ItemDifference]:
    """Return the differences between two ranks by item, equal layers as one."""
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
"""Numbers of calls: all ranks make the same calls in the same order."""


def gather(record: Any) -> JobReport | None:
    """Compare the records of all ranks; return the report on rank 0, None on the others.

    Every rank must call it equally often. A few kilobytes go to rank 0, which alone waits, through
    the store of the process group: no collective runs and no device is touched. Ranks that have
    not called it within the store's timeout (``timeout`` of ``init_process_group``) are missing in
    the report. A process without a group is a job of one rank.

    Args:
        record: this rank's snapshot, recording, line report or leak report; one kind on all ranks.

    Raises:
        UsageError: the record is of another kind or has no bytes, or kinds differ among ranks.
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
        # rank 0 waits for this rank: send the error
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
"""Backend of estimates, in which one rank runs without the others and without a store."""


def _received(
    store: Any, keys: list[str], timeout: type[Exception]
) -> Iterator[RankReport | UsageError]:
    """Yield the reports of ranks that arrive before the store's timeout."""
    with suppress(timeout):
        store.wait(keys)
    for key in keys:
        if store.check([key]):
            yield pickle.loads(store.get(key))
            store.delete_key(key)
