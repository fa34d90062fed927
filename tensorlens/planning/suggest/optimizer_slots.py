"""A Keras optimizer that keeps less."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.planning.suggest.candidates import Candidate
from tensorlens.planning.suggest.optimizers import has_momentum, plain_sgd
from tensorlens.planning.suggest.recorded_steps import Scene, Span
from tensorlens.planning.suggest.replay import Replay
from tensorlens.planning.suggest.result import SIMULATED
from tensorlens.records.events import ALLOC

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


def without_slots(scene: Scene) -> Iterator[Candidate]:
    """Give the change to plain SGD, where optimizers of Keras keep slots.

    In eager code the slots go, and all that optimizers' steps hand out but the parameters; each
    step of SGD makes one product at a time, of the size of a parameter. In a graph, where what an
    optimizer makes is not always known as such, the bytes of the slots go.
    """
    if not is_left_to_simulation(scene):
        yield from replayed_sgd(scene)


def is_left_to_simulation(scene: Scene) -> bool:
    """Tell whether the step is a graph that can be simulated.

    Its recording is of one order of the operations, and without slots there may be another.
    """
    facts = scene.facts
    if facts is None or facts.is_whole or not (facts.is_graph and facts.is_compiled):
        return False
    return bool(_state(scene)) and not has_momentum(scene)


def simulated_sgd(scene: Scene, peak: int) -> Candidate:
    """Return the change to plain SGD with the peak that the simulation found."""
    return plain_sgd(_CODE, False, _kinds(scene), peak, SIMULATED)


def replayed_sgd(scene: Scene) -> Iterator[Candidate]:
    """Give the change to plain SGD as the recording tells it."""
    state = _state(scene)
    if not state:
        return
    replay = scene.replay()
    if not any(each.does_more for each in scene.optimizers) and _is_all_known(scene, state):
        _remove(scene, replay)
    else:
        replay.add(-state, scene.steps[0].begin, len(scene.log))
    yield plain_sgd(_CODE, has_momentum(scene), _kinds(scene), replay.peak()[0])


def _kinds(scene: Scene) -> set[str]:
    return {each.kind for each in scene.optimizers if each.state}


def _state(scene: Scene) -> int:
    """Return the bytes of slots, as the program told, else as the census at the end did."""
    if scene.facts is not None:
        return sum(each.state or 0 for each in scene.facts.optimizers)
    found = 0
    for row in scene.allocations():
        label = scene.roles.label(row)
        if label is not None and label.role == "optimizer" and scene.end(row) == len(scene.log):
            found += scene.log.size[row]
    return found if found > _NOT_MUCH else 0


def _is_all_known(scene: Scene, state: int) -> bool:
    """Tell whether what the recording says is an optimizer's, when a step begins, is its state."""
    begin = scene.steps[-1].begin
    there = (row for row in scene.allocations() if scene.resident(row, begin - 1))
    found = scene.nbytes(row for row in there if scene.role(row) == "optimizer")
    return state <= found <= state + _NOT_MUCH


def _remove(scene: Scene, replay: Replay) -> None:
    handles = {row for row in scene.allocations() if scene.roles.named(row) == _HANDLES}
    gone = set()
    for row in scene.allocations():
        role = scene.role(row)
        if role == "optimizer" and not (scene.roles.named(row) or "").endswith(_OF_ALL):
            gone |= {row, *([row + n for n in range(1, _BEHIND) if row + n in handles][:1])}
        elif role not in ("optimizer", *_KEPT) and scene.phase(row) == "optimizer":
            gone.add(row)
    for row in gone:
        replay.remove(row)
    facts = scene.facts
    largest = max((each.largest for each in scene.optimizers), default=0)
    for span in scene.updates:
        replay.insert(span.begin, (largest, -largest))
    if facts is not None and facts.scattered:
        _copy_when_read(scene, replay, facts.scattered)


def _copy_when_read(scene: Scene, replay: Replay, nbytes: int) -> None:
    """Let the tape keep a copy of the parameters that SGD writes rows of.

    From the first such write on, TensorFlow copies a variable whenever it is read
    (``copy_on_read_mode`` of ``resource_variable_ops.cc``).
    """
    for step in scene.steps[1:]:
        rows = [row for row in scene.allocations(step) if scene.phase(row) == "forward"]
        if any(_is_copy(scene, row) for row in rows):
            return
        update = next((each for each in scene.updates if each.begin in step), None)
        if rows and update is not None:
            replay.add(nbytes, rows[0] - 1, _end_of_backward(scene, Span(rows[0], update.begin)))


def _end_of_backward(scene: Scene, span: Span) -> int:
    backward = (
        row for row in range(span.end - 1, span.begin, -1) if scene.phase(row) == "backward"
    )
    return next(backward, span.end)


def _is_copy(scene: Scene, row: int) -> bool:
    context = scene.study.context(scene.study.place(row))
    return scene.log.kind[row] == ALLOC and context.op == _READ
