"""Suggests a smaller queue of batches for a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.suggest.recorded_steps import RecordedSteps
from tensorlens.planning.suggest.result import Method, Suggestion
from tensorlens.units import format_bytes


def queue_change(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield the change to a ``prefetch_factor`` of 1: one batch ahead for each worker.

    Waiting batches are host memory that is not part of the recorded peak: workers make them in
    memory shared with this process, and copies in pinned memory come from no recorded allocator.
    """
    loaders = recorded.facts.queues
    before = sum(each.batches * each.batch_nbytes for each in loaders)
    after = sum(min(each.batches, each.workers) * each.batch_nbytes for each in loaders)
    if after >= before:
        return
    memory = " and ".join(sorted({each.memory for each in loaders}))
    recorded_memory = (
        "what the process allocates"
        if recorded.device == "cpu"
        else f"the memory of {recorded.device}"
    )
    workers = {each.workers for each in loaders}
    count = f"num_workers={workers.pop()}, " if len(workers) == 1 else ""
    yield recorded.suggestion(
        kind="queue",
        change="a smaller queue",
        what=(
            f"{format_bytes(before)} held ahead at most by"
            f" {' and '.join(each.name for each in loaders)}: {memory}, beside {recorded_memory}"
        ),
        code=(
            "from torch.utils.data import DataLoader\n"
            "# with what else it is given now\n"
            f"loader = DataLoader(dataset, {count}prefetch_factor=1)"
        ),
        peak=after,
        cost="the step waits sooner where a batch takes longer than a step",
        settings=("prefetch_factor=1",),
        how=Method.COUNTED,
        memory=memory,
        before=before,
    )
