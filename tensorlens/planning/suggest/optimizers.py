"""Suggests an optimizer without state."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, RecordedSteps
from tensorlens.planning.suggest.result import Suggestion

_COMMON_BYTES = 16
"""Bytes that every optimizer of Keras has: the number of steps and the learning rate."""


def optimizer_change(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield the change to plain SGD, if optimizers keep state.

    In torch, their state and the allocations of their steps go; SGD allocates nothing, or with
    weight decay one more gradient at a time. In TensorFlow, the slots go; but once SGD has written
    rows of a parameter, TensorFlow copies it at each read (``copy_on_read_mode`` of
    ``resource_variable_ops.cc``).
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
        for span in recorded.optimizer_steps if largest else ():
            replay.insert(span.start, (largest, -largest))
    yield plain_sgd(recorded, replay.peak())


def plain_sgd(recorded: RecordedSteps, peak: int) -> Suggestion:
    """Return the change to SGD without state, with its predicted peak."""
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
    """Return the code to write, with the model's name and the learning rate if known."""
    rates = {each.rate for each in recorded.facts.optimizers}
    rate = rates.pop() if len(rates) == 1 else None
    rate_text = "..." if rate is None else repr(rate)
    if recorded.framework == TENSORFLOW:
        return f"optimizer = keras.optimizers.SGD(learning_rate={rate_text})"
    if recorded.facts.model:
        return f"optimizer = torch.optim.SGD({recorded.facts.model}.parameters(), lr={rate_text})"
    return f"# with your model's parameters\noptimizer = torch.optim.SGD(..., lr={rate_text})"


def has_momentum(recorded: RecordedSteps) -> bool:
    """Tell whether an optimizer is SGD with momentum."""
    return any(each.momentum for each in recorded.facts.optimizers if each.kind == "SGD")


def slot_bytes(recorded: RecordedSteps) -> int:
    """Return the bytes of slots, from the program's facts, else from the census at the end."""
    if recorded.has_facts:
        return sum(each.state or 0 for each in recorded.facts.optimizers)
    found = 0
    for row in recorded.allocations():
        label = recorded.roles.label(row) if recorded.end(row) == len(recorded.log) else None
        found += recorded.log.size[row] if label and label.role == "optimizer" else 0
    return found if found > _COMMON_BYTES else 0
