"""``gather()``: the ranks of a running job in one report, over torch.distributed's store."""

from __future__ import annotations

import itertools
import pickle
import sys
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.jobs.merge import job_report
from tensorlens.jobs.rank_report import RankReport, rank_report
from tensorlens.jobs.report import JobReport

_calls = itertools.count()
"""Every rank makes the same calls in the same order, so that their numbers are the same."""


def gather(record: Any) -> JobReport | None:
    """Return on rank 0 what the records of all ranks say beside each other; None on the others.

    Every rank has to call it. A few kilobytes go to rank 0, which alone waits: through the store by
    which the ranks have found each other, so that no collective runs and no device is touched. A
    rank that does not call it until the store's timeout (``timedelta`` of ``init_process_group``)
    is missing in the report. A process outside of a group is a job of one.

    Args:
        record: this rank's snapshot, recording, line report or leak report; the same kind on all.

    Raises:
        UsageError: it is another record, has no bytes, or ranks gave several kinds.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return job_report([rank_report(record, "this process", 0, 1)])
    rank, size = distributed.get_rank(), distributed.get_world_size()
    given: RankReport | UsageError
    try:
        given = rank_report(record, f"rank {rank}", rank, size)
    except UsageError as error:
        # rank 0 waits for this rank as well
        given = error
    default = distributed.distributed_c10d._get_default_store()
    store = distributed.PrefixStore(f"tensorlens/{next(_calls)}", default)
    reports: list[RankReport | UsageError | None] = [given]
    if rank:
        store.set(str(rank), pickle.dumps(given))
    else:
        reports += (_received(store, str(other)) for other in range(1, size))
    for each in reports:
        if isinstance(each, UsageError):
            raise each
    return None if rank else job_report([each for each in reports if isinstance(each, RankReport)])


def _received(store: Any, key: str) -> RankReport | UsageError | None:
    """Return what a rank gave; None where it gave nothing in time."""
    try:
        content = store.get(key)
    except RuntimeError:
        # DistStoreError; a store that is the estimate's own has nothing either
        return None
    store.delete_key(key)
    given: RankReport | UsageError = pickle.loads(content)
    return given
