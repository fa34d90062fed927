"""What stays from step to step, made smaller: an optimizer's state, and a loader's queue."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, RecordedSteps
from tensorlens.planning.suggest.result import Method, Suggestion
from tensorlens.units import format_bytes

_NOT_MUCH = 16
"""Bytes of the numbers that every optimizer of Keras has: the count of steps, the learning rate."""


def optimizer_change(record: RecordedSteps) -> Iterator[Suggestion]:
    """Give the change to plain SGD, where optimizers keep state.

    Of torch the state goes, and all that their steps hand out. SGD hands out nothing but, with
    weight decay, one gradient more at a time. Of TensorFlow the bytes of the slots go; but where
    SGD writes rows of a parameter, TensorFlow copies it from then on whenever it is read
    (``copy_on_read_mode`` of ``resource_variable_ops.cc``).
    """
    replay = record.replay()
    if record.framework == TENSORFLOW:
        slots = slot_bytes(record)
        if not slots:
            return
        replay.add(-slots, record.steps[0].start, len(record.log))
        copied = record.facts.sparse_gradient_bytes
        for step in record.steps[1:] if copied else ():
            replay.add(copied, step.start, step.stop)
    else:
        state = {row for row in record.allocations() if record.role(row) == "optimizer"}
        if not state:
            return
        for row in record.allocations():
            if row in state or record.phase(row) == "optimizer":
                replay.remove(row)
        largest = max((each.largest for each in record.facts.optimizers if each.decays), default=0)
        for span in record.updates if largest else ():
            replay.insert(span.start, (largest, -largest))
    yield plain_sgd(record, replay.peak())


def plain_sgd(record: RecordedSteps, peak: int) -> Suggestion:
    """Return the change to SGD without state, with the peak that it would have."""
    kinds = {
        each.kind
        for each in record.facts.optimizers
        if each.state or record.framework != TENSORFLOW
    }
    momentum = has_momentum(record)
    return record.suggestion(
        kind="optimizer",
        change="SGD without momentum" if momentum else "SGD",
        what=f"the state of {', '.join(sorted(kinds) or ['the optimizer'])}",
        code=_code(record),
        peak=peak,
        cost="trains differently: you must re-tune learning rate and schedule",
        settings=() if momentum else ("optimizer=sgd",),
    )


def _code(record: RecordedSteps) -> str:
    """Return what to write, with the model's name and the learning rate where they are known."""
    rates = {each.rate for each in record.facts.optimizers}
    rate = rates.pop() if len(rates) == 1 else None
    told = "..." if rate is None else repr(rate)
    if record.framework == TENSORFLOW:
        return f"optimizer = keras.optimizers.SGD(learning_rate={told})"
    if record.facts.model:
        return f"optimizer = torch.optim.SGD({record.facts.model}.parameters(), lr={told})"
    return f"# with your model's parameters\noptimizer = torch.optim.SGD(..., lr={told})"


def has_momentum(record: RecordedSteps) -> bool:
    """Tell whether it is SGD already, which keeps momentum."""
    return any(each.momentum for each in record.facts.optimizers if each.kind == "SGD")


def slot_bytes(record: RecordedSteps) -> int:
    """Return the bytes of slots, as the program told, else as the census at the end did."""
    if not record.is_alone:
        return sum(each.state or 0 for each in record.facts.optimizers)
    found = 0
    for row in record.allocations():
        label = record.roles.label(row) if record.end(row) == len(record.log) else None
        found += record.log.size[row] if label and label.role == "optimizer" else 0
    return found if found > _NOT_MUCH else 0


def queue_change(record: RecordedSteps) -> Iterator[Suggestion]:
    """Give the change to a ``prefetch_factor`` of 1: one batch ahead for each worker.

    What waits is of the host's memory, and not at the recorded peak: workers make batches in
    memory that they share with this process, and a copy in pinned memory is of no allocator that
    is recorded.
    """
    loaders = record.facts.queues
    before = sum(each.batches * each.batch_nbytes for each in loaders)
    after = sum(min(each.batches, each.workers) * each.batch_nbytes for each in loaders)
    if after >= before:
        return
    memory = " and ".join(sorted({each.memory for each in loaders}))
    of = (
        "what the process allocates" if record.device == "cpu" else f"the memory of {record.device}"
    )
    workers = {each.workers for each in loaders}
    count = f"num_workers={workers.pop()}, " if len(workers) == 1 else ""
    yield record.suggestion(
        kind="queue",
        change="a smaller queue",
        what=(
            f"{format_bytes(before)} held ahead at most by"
            f" {' and '.join(each.name for each in loaders)}: {memory}, beside {of}"
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
