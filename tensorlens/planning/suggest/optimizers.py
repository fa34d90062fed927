"""An optimizer that keeps less."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tensorlens.planning.suggest.recorded_steps import Candidate, EventRange, RecordedSteps, Replay
from tensorlens.planning.suggest.result import Method
from tensorlens.records.events import ALLOC

SGD_SETTINGS = {"optimizer": "sgd"}
_STATELESS = ("SGD",)
_SMALLEST_8BIT = 4096 * 4
"""Bytes of the smallest single-precision state that is kept in 8 bits (``min_8bit_size`` of
bitsandbytes' optimizers)."""
_BLOCK = 256
"""Elements that share one single-precision scale (``blockwise`` state of bitsandbytes 0.41 on)."""
_TRAINS = "trains differently: you must re-tune learning rate and schedule"


def without_state(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to plain SGD, where optimizers keep state.

    Their state goes, and all that their steps hand out. SGD hands out nothing but, with weight
    decay, one gradient more at a time.
    """
    state = _state(record)
    if not state:
        return
    replay = record.replay()
    for row in {*state, *_of_steps(record)}:
        replay.remove(row)
    largest = max((each.largest for each in record.optimizers if each.decays), default=0)
    for span in record.updates if largest else ():
        replay.insert(span.begin, (largest, -largest))
    kinds = {each.kind for each in record.optimizers}
    code = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)"
    yield plain_sgd(code, has_momentum(record), kinds, replay.peak()[0])


def has_momentum(record: RecordedSteps) -> bool:
    """Tell whether it is SGD already, which keeps momentum."""
    return any(each.momentum for each in record.optimizers if each.kind in _STATELESS)


def plain_sgd(
    code: str, momentum: bool, kinds: Collection[str], peak: int, how: Method = Method.REPLAYED
) -> Candidate:
    """Return the change to SGD without state.

    Args:
        code: what to write.
        momentum: whether it is SGD already, with momentum.
        kinds: the classes of the optimizers whose state goes.
        peak: what would be handed out at most.
        how: that is known.
    """
    return Candidate(
        kind="optimizer",
        change="SGD without momentum" if momentum else "SGD",
        what=f"the state of {', '.join(sorted(kinds) or ['the optimizer'])}",
        code=code,
        peak=peak,
        cost=_TRAINS,
        settings={} if momentum else SGD_SETTINGS,
        how=how,
    )


def in_8_bits(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to Adam with state in 8 bits, where bitsandbytes and a GPU are here."""
    facts = record.facts
    if facts is None or not facts.has_8bit or not record.device.startswith("cuda"):
        return
    if not {each.kind for each in facts.optimizers} <= {"Adam", "AdamW"}:
        return
    state = _state(record)
    replay = record.replay()
    for row in state:
        replay.resize(row, bytes_in_8_bits(record.log.size[row]))
    for row in _of_steps(record):
        if row not in state:
            replay.remove(row)
    if state:
        yield Candidate(
            kind="optimizer",
            change="Adam with state in 8 bits",
            what="the state of Adam",
            code=(
                "from bitsandbytes.optim import Adam8bit\n"
                "optimizer = Adam8bit(model.parameters(), lr=1e-3)"
            ),
            peak=replay.peak()[0],
            cost="rounds the state to 8 bits",
            settings={"optimizer": "adam8bit"},
        )


def bytes_in_8_bits(nbytes: int) -> int:
    """Return what single-precision state of so many bytes takes in 8 bits, with its scales."""
    if nbytes < _SMALLEST_8BIT:
        return nbytes
    elements = nbytes // 4
    return elements + 4 * -(-elements // _BLOCK)


def _state(record: RecordedSteps) -> set[int]:
    return {row for row in record.allocations() if record.role(row) == "optimizer"}


def _of_steps(record: RecordedSteps) -> set[int]:
    return {row for row in record.allocations() if record.phase(row) == "optimizer"}


_CODE = "optimizer = keras.optimizers.SGD(learning_rate=0.01)"
_KEPT = ("parameter", "buffer")
_READ = "ReadVariableOp"
_HANDLES = "handles of variables"
_OF_ALL = (".iteration", ".iterations", ".learning_rate")
"""Ends of the names of what SGD has as well."""
_BEHIND = 4
"""A variable's handle is made within so many events behind its value."""
_NOT_MUCH = 16
"""Bytes of the numbers that every optimizer has: the count of steps and the learning rate."""


def without_slots(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to plain SGD, where optimizers of Keras keep slots.

    In eager code the slots go, and all that optimizers' steps hand out but the parameters; each
    step of SGD makes one product at a time, of the size of a parameter. In a graph, where what an
    optimizer makes is not always known as such, the bytes of the slots go.
    """
    if not is_left_to_simulation(record):
        yield from replayed_sgd(record)


def is_left_to_simulation(record: RecordedSteps) -> bool:
    """Tell whether the step is a graph that can be simulated.

    Its recording is of one order of the operations, and without slots there may be another.
    """
    facts = record.facts
    if facts is None or facts.is_whole or not (facts.is_graph and facts.is_compiled):
        return False
    return bool(_slots(record)) and not has_momentum(record)


def simulated_sgd(record: RecordedSteps, peak: int) -> Candidate:
    """Return the change to plain SGD with the peak that the simulation found."""
    return plain_sgd(_CODE, False, _kinds(record), peak, Method.SIMULATED)


def replayed_sgd(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to plain SGD as the recording tells it."""
    state = _slots(record)
    if not state:
        return
    replay = record.replay()
    if not any(each.does_more for each in record.optimizers) and _is_all_known(record, state):
        _remove(record, replay)
    else:
        replay.add(-state, record.steps[0].begin, len(record.log))
    yield plain_sgd(_CODE, has_momentum(record), _kinds(record), replay.peak()[0])


def _kinds(record: RecordedSteps) -> set[str]:
    return {each.kind for each in record.optimizers if each.state}


def _slots(record: RecordedSteps) -> int:
    """Return the bytes of slots, as the program told, else as the census at the end did."""
    if record.facts is not None:
        return sum(each.state or 0 for each in record.facts.optimizers)
    found = 0
    for row in record.allocations():
        label = record.roles.label(row)
        if label is not None and label.role == "optimizer" and record.end(row) == len(record.log):
            found += record.log.size[row]
    return found if found > _NOT_MUCH else 0


def _is_all_known(record: RecordedSteps, state: int) -> bool:
    """Tell whether what the recording says is an optimizer's, when a step begins, is its state."""
    begin = record.steps[-1].begin
    there = (row for row in record.allocations() if record.resident(row, begin - 1))
    found = record.nbytes(row for row in there if record.role(row) == "optimizer")
    return state <= found <= state + _NOT_MUCH


def _remove(record: RecordedSteps, replay: Replay) -> None:
    handles = {row for row in record.allocations() if record.roles.named(row) == _HANDLES}
    gone = set()
    for row in record.allocations():
        role = record.role(row)
        if role == "optimizer" and not (record.roles.named(row) or "").endswith(_OF_ALL):
            gone |= {row, *([row + n for n in range(1, _BEHIND) if row + n in handles][:1])}
        elif role not in ("optimizer", *_KEPT) and record.phase(row) == "optimizer":
            gone.add(row)
    for row in gone:
        replay.remove(row)
    facts = record.facts
    largest = max((each.largest for each in record.optimizers), default=0)
    for span in record.updates:
        replay.insert(span.begin, (largest, -largest))
    if facts is not None and facts.scattered:
        _copy_when_read(record, replay, facts.scattered)


def _copy_when_read(record: RecordedSteps, replay: Replay, nbytes: int) -> None:
    """Let the tape keep a copy of the parameters that SGD writes rows of.

    From the first such write on, TensorFlow copies a variable whenever it is read
    (``copy_on_read_mode`` of ``resource_variable_ops.cc``).
    """
    for step in record.steps[1:]:
        rows = [row for row in record.allocations(step) if record.phase(row) == "forward"]
        if any(_is_copy(record, row) for row in rows):
            return
        update = next((each for each in record.updates if each.begin in step), None)
        if rows and update is not None:
            replay.add(
                nbytes, rows[0] - 1, _end_of_backward(record, EventRange(rows[0], update.begin))
            )


def _end_of_backward(record: RecordedSteps, span: EventRange) -> int:
    backward = (
        row for row in range(span.end - 1, span.begin, -1) if record.phase(row) == "backward"
    )
    return next(backward, span.end)


def _is_copy(record: RecordedSteps, row: int) -> bool:
    context = record.study.context(record.study.place(row))
    return record.log.kind[row] == ALLOC and context.op == _READ
