"""An optimizer that keeps less."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tensorlens.planning.suggest.candidates import Candidate
from tensorlens.planning.suggest.recorded_steps import Scene
from tensorlens.planning.suggest.result import REPLAYED

SGD_SETTINGS = {"optimizer": "sgd"}
_STATELESS = ("SGD",)
_SMALLEST_8BIT = 4096 * 4
"""Bytes of the smallest single-precision state that is kept in 8 bits (``min_8bit_size`` of
bitsandbytes' optimizers)."""
_BLOCK = 256
"""Elements that share one single-precision scale (``blockwise`` state of bitsandbytes 0.41 on)."""
_TRAINS = "trains differently: learning rate and schedule have to be found again"


def without_state(scene: Scene) -> Iterator[Candidate]:
    """Give the change to plain SGD, where optimizers keep state.

    Their state goes, and all that their steps hand out. SGD hands out nothing but, with weight
    decay, one gradient more at a time.
    """
    state = _state(scene)
    if not state:
        return
    replay = scene.replay()
    for row in {*state, *_of_steps(scene)}:
        replay.remove(row)
    largest = max((each.largest for each in scene.optimizers if each.decays), default=0)
    for span in scene.updates if largest else ():
        replay.insert(span.begin, (largest, -largest))
    kinds = {each.kind for each in scene.optimizers}
    code = "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)"
    yield plain_sgd(code, has_momentum(scene), kinds, replay.peak()[0])


def has_momentum(scene: Scene) -> bool:
    """Tell whether it is SGD already, which keeps momentum."""
    return any(each.momentum for each in scene.optimizers if each.kind in _STATELESS)


def plain_sgd(
    code: str, momentum: bool, kinds: Collection[str], peak: int, how: str = REPLAYED
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


def in_8_bits(scene: Scene) -> Iterator[Candidate]:
    """Give the change to Adam with state in 8 bits, where bitsandbytes and a GPU are here."""
    facts = scene.facts
    if facts is None or not facts.has_8bit or not scene.device.startswith("cuda"):
        return
    if not {each.kind for each in facts.optimizers} <= {"Adam", "AdamW"}:
        return
    state = _state(scene)
    replay = scene.replay()
    for row in state:
        replay.resize(row, bytes_in_8_bits(scene.log.size[row]))
    for row in _of_steps(scene):
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


def _state(scene: Scene) -> set[int]:
    return {row for row in scene.allocations() if scene.role(row) == "optimizer"}


def _of_steps(scene: Scene) -> set[int]:
    return {row for row in scene.allocations() if scene.phase(row) == "optimizer"}
