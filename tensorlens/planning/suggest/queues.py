"""Smaller queues of batches that wait for the step: torch's loaders, and TensorFlow's buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.planning.step_facts import PrefetchQueue
from tensorlens.planning.suggest.recorded_steps import Candidate, RecordedSteps, Replay
from tensorlens.planning.suggest.result import Method
from tensorlens.records.events import ALLOC
from tensorlens.units import format_bytes

_LEAST = 1


def smaller_queue(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to a ``prefetch_factor`` of 1: one batch ahead for each worker.

    What waits is of the host's memory, and not at the recorded peak: workers make batches in
    memory that they share with this process, and a copy in pinned memory is of no allocator that
    is recorded.
    """
    loaders = () if record.facts is None else record.facts.queues
    before = sum(each.batches * each.batch_nbytes for each in loaders)
    after = sum(min(each.batches, _LEAST * each.workers) * each.batch_nbytes for each in loaders)
    if after >= before:
        return
    memory = " and ".join(sorted({each.memory for each in loaders}))
    of = (
        "what the process allocates" if record.device == "cpu" else f"the memory of {record.device}"
    )
    workers = {each.workers for each in loaders}
    count = f"num_workers={workers.pop()}, " if len(workers) == 1 else ""
    yield Candidate(
        kind="queue",
        change="a smaller queue",
        what=(
            f"{format_bytes(before)} held ahead at most by"
            f" {' and '.join(each.name for each in loaders)}: {memory}, beside {of}"
        ),
        code=(
            "from torch.utils.data import DataLoader\n"
            "# with what else it is given now\n"
            f"loader = DataLoader(dataset, {count}prefetch_factor={_LEAST})"
        ),
        peak=after,
        cost="the step waits sooner where a batch takes longer than a step",
        settings={"prefetch_factor": _LEAST},
        how=Method.COUNTED,
        memory=memory,
        before=before,
    )


def smaller_buffers(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to ``prefetch(1)``, where ``tf.data`` has more batches ready.

    A batch is made when as many fewer ones are there as the buffer is smaller.
    """
    queues = () if record.facts is None else record.facts.buffered
    # of several it is not known which batch is of which
    queue = queues[0] if len(queues) == 1 else None
    made = () if queue is None else _made(record, queue)
    if queue is None or queue.batches < 2 or not made:
        return
    replay = record.replay()
    for rows in made:
        _make_later(record, replay, rows, queue.batches - 1)
    yield Candidate(
        kind="queue",
        change="prefetch one batch",
        what=f"{queue.name} has {queue.batches:,} batches ready ahead of the step",
        code="# in place of a larger buffer, or of AUTOTUNE\ndataset = dataset.prefetch(1)",
        peak=replay.peak()[0],
        cost="the step waits where a batch takes longer than a step",
    )


def _made(record: RecordedSteps, queue: PrefetchQueue) -> Sequence[Sequence[int]]:
    """Return the parts of batches that threads of ``tf.data`` made, by their size.

    Where a batch has several parts of one size, every one of them is a series of its own.
    """
    found: dict[int, list[int]] = {}
    for row in record.allocations():
        is_made = record.log.kind[row] == ALLOC and record.log.stack[row] < 0
        if is_made and record.role(row) == "input" and record.log.size[row] <= queue.batch_nbytes:
            found.setdefault(record.log.size[row], []).append(row)
    series = []
    for size, rows in found.items():
        parts = _parts(record, rows, queue.batch_nbytes // size)
        series += [rows[part::parts] for part in range(parts)]
    return series


def _parts(record: RecordedSteps, rows: Sequence[int], most: int) -> int:
    """Return how many of these a batch has, by how many a step is through with."""
    steps = record.steps[:-1] or record.steps
    gone = sum(1 for row in rows if any(record.end(row) in step for step in steps))
    return max(1, min(most, round(gone / len(steps))))


def _make_later(record: RecordedSteps, replay: Replay, rows: Sequence[int], fewer: int) -> None:
    """Let each be made when so many fewer of those before it are still there."""
    ends = sorted(map(record.end, rows))
    there = max(sum(record.resident(other, row) for other in rows) for row in rows)
    for place, row in enumerate(rows):
        before = place - max(there - fewer, 1)
        begin = ends[before] if before >= 0 else row
        if begin > row:
            replay.remove(row)
            replay.add(record.log.size[row], begin, record.end(row))
