"""``gather()``: the ranks of a running job in one report, over torch.distributed's store."""

from __future__ import annotations

import itertools
import pickle
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.jobs.merge import job_report
from tensorlens.jobs.rank_report import RankReport, rank_report
from tensorlens.jobs.report import JobReport

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
