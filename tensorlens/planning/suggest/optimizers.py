"""An optimizer without state."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, RecordedSteps
from tensorlens.planning.suggest.result import Suggestion

_NOT_MUCH = 16
"""Bytes of the numbers that every optimizer of Keras has: the count of steps, the learning rate."""


def optimizer_change(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Give the change to plain SGD, where optimizers keep state.

    Of torch the state goes, and all that their steps hand out. SGD hands out nothing but, with
    weight decay, one gradient more at a time. Of TensorFlow the bytes of the slots go; but where
    SGD writes rows of a parameter, TensorFlow copies it from then on whenever it is read
    (``copy_on_read_mode`` of ``resource_variable_ops.cc``).
    """
    replay = recorded.replay()
    if recorded.framework == TENSORFLOW:
        slots = slot_bytes(recorded)
        if not slots:
            return
        replay.add(-slots, recorded.steps[0].start, len(recorded.log))
        copied = recorded.facts.sparse_gradient_bytes
        for step in recorded.steps[1:] if copied else ():
            replay.add(copied, step.start, step.stop)
    else:
        state = {row for row in recorded.allocations() if recorded.role(row) == "optimizer"}
        if not state:
            return
        for row in recorded.allocations():
            if row in state or recorded.phase(row) == "optimizer":
                replay.remove(row)
        largest = max(
            (each.largest for each in recorded.facts.optimizers if each.decays), default=0
        )
        for span in recorded.updates if largest else ():
            replay.insert(span.start, (largest, -largest))
    yield plain_sgd(recorded, replay.peak())


def plain_sgd(recorded: RecordedSteps, peak: int) -> Suggestion:
    """Return the change to SGD without state, with the peak that it would have."""
    kinds = {
        each.kind
        for each in recorded.facts.optimizers
        if each.state or recorded.framework != TENSORFLOW
    }
    momentum = has_momentum(recorded)
    return recorded.suggestion(
        kind="optimizer",
        change="SGD without momentum" if momentum else "SGD",
        what=f"the state of {', '.join(sorted(kinds) or ['the optimizer'])}",
        code=_code(recorded),
        peak=peak,
        cost="trains differently: you must re-tune learning rate and schedule",
        settings=() if momentum else ("optimizer=sgd",),
    )


def _code(recorded: RecordedSteps) -> str:
    """Return what to write, with the model's name and the learning rate where they are known."""
    rates = {each.rate for each in recorded.facts.optimizers}
    rate = rates.pop() if len(rates) == 1 else None
    told = "..." if rate is None else repr(rate)
    if recorded.framework == TENSORFLOW:
        return f"optimizer = keras.optimizers.SGD(learning_rate={told})"
    if recorded.facts.model:
        return f"optimizer = torch.optim.SGD({recorded.facts.model}.parameters(), lr={told})"
    return f"# with your model's parameters\noptimizer = torch.optim.SGD(..., lr={told})"


def has_momentum(recorded: RecordedSteps) -> bool:
    """Tell whether it is SGD already, which keeps momentum."""
    return any(each.momentum for each in recorded.facts.optimizers if each.kind == "SGD")


def slot_bytes(recorded: RecordedSteps) -> int:
    """Return the bytes of slots, as the program told, else as the census at the end did."""
    if recorded.has_facts:
        return sum(each.state or 0 for each in recorded.facts.optimizers)
    found = 0
    for row in recorded.allocations():
        label = recorded.roles.label(row) if recorded.end(row) == len(recorded.log) else None
        found += recorded.log.size[row] if label and label.role == "optimizer" else 0
    return found if found > _NOT_MUCH else 0
