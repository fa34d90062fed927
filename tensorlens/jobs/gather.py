"""``gather()``: the ranks of a running job in one report, over torch.distributed."""

from __future__ import annotations

import sys
from typing import Any

from tensorlens.errors import UsageError
from tensorlens.jobs.merge import job_report
from tensorlens.jobs.rank_report import RankReport, rank_report
from tensorlens.jobs.report import JobReport


def gather(record: Any) -> JobReport | None:
    """Return on rank 0 what the records of all ranks say beside each other; None on the others.

    Every rank has to call it, as any collective of ``torch.distributed``; a few kilobytes go to
    rank 0. A process outside of a group is a job of one.

    Args:
        record: this rank's snapshot, recording, line report or leak report; the same kind on all.

    Raises:
        UsageError: it is another record, has no bytes, or ranks gave several kinds.
    """
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return job_report([rank_report(record, "this process", 0, 1)])
    rank, size = distributed.get_rank(), distributed.get_world_size()
    own: RankReport | UsageError
    try:
        own = rank_report(record, f"rank {rank}", rank, size)
    except UsageError as error:
        # the others wait for this rank as well
        own = error
    reports: list[Any] | None = [None] * size if rank == 0 else None
    distributed.gather_object(own, reports, dst=0)
    for each in (own, *(reports or ())):
        if isinstance(each, UsageError):
            raise each
    return None if reports is None else job_report(reports)
