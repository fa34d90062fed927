"""Repeated blocks of Keras layers that keep their inputs alone, by ``tf.recompute_grad``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import RecordedSteps, Replay
from tensorlens.planning.suggest.repeated_blocks import (
    TWICE,
    Call,
    RepeatedBlocks,
    cost_of,
    keep_inputs,
    outliving,
    output_of,
    second_forward,
)
from tensorlens.planning.suggest.result import Suggestion


def block_recomputation(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Give the change to ``tf.recompute_grad`` of all repeated blocks, where tapes were recorded.

    What a block's forward keeps dies at its end, but for its output, which the gradient function
    of ``tf.custom_gradient`` holds, as it does the input. When backward comes to the block its
    forward runs once more on a tape of its own; the gradient it is given, and its output, are
    there until it is through (``custom_gradient.py`` of TensorFlow 2.21).
    """
    where = RepeatedBlocks(recorded)
    found = where.calls()
    if not found or recorded.facts.recomputes:
        return
    replay = recorded.replay()
    inputs = keep_inputs(recorded, replay, found)
    for call in found:
        _recompute(recorded, replay, call, inputs)
    cost = cost_of(recorded, found)
    yield recompute_suggestion(recorded, where.used(found), replay.peak(), cost)


def recompute_suggestion(
    recorded: RecordedSteps, blocks: Sequence[RepeatedBlock], peak: int = 0, cost: str = TWICE
) -> Suggestion:
    """Return the change; ``peak`` 0 where it is still to be simulated."""
    classes = Counter(block.kind or "block" for block in blocks)
    paths = [block.path for block in blocks]
    shown = paths if len(paths) < 4 else [*paths[:2], "...", paths[-1]]
    names = ", ".join(f'"{path.rpartition("/")[2]}"' for path in paths)
    return recorded.suggestion(
        kind="checkpoint",
        change=f"recompute {len(blocks)} blocks",
        what=f"{', '.join(f'{n} x {kind}' for kind, n in classes.items())}: {', '.join(shown)}",
        code=(
            "# before the model is called\n"
            "def recomputed(call):\n"
            "    def again(*given, **options):\n"
            "        return tf.recompute_grad(lambda *x: call(*x, **options))(*given)\n"
            "    return again\n"
            "for block in model._flatten_layers():\n"
            f"    if block.name in ({names}):\n"
            "        block.call = recomputed(block.call)"
        ),
        peak=peak,
        cost=cost,
        settings=("recompute=blocks",),
    )


def _recompute(
    recorded: RecordedSteps, replay: Replay, call: Call, inputs: Mapping[int, int]
) -> None:
    until = call.backward.stop
    kept = outliving(recorded, call)
    needed = [row for row in kept if recorded.end(row) in call.backward]
    if not needed:
        return
    output = output_of(recorded, kept)
    for row in needed:
        if row == output:
            replay.free_first_copy(row, max(until, inputs.get(row, 0)))
            # the second one stays to the end as well
            replay.add(recorded.log.size[row], recorded.end(row), until)
        else:
            replay.free_first_copy(row, call.forward.stop)
    replay.insert(call.backward.start, second_forward(recorded, call.forward, needed))
    given = _output_gradient(recorded, call)
    if given is not None:
        replay.free(given, until)


def _output_gradient(recorded: RecordedSteps, call: Call) -> int | None:
    """Return what is likely the gradient that a block's backward is given: the newest there."""
    rows = recorded.allocations(range(call.forward.stop, call.backward.start))
    there = [
        row
        for row in rows
        if recorded.phase(row) == "backward" and recorded.end(row) in call.backward
    ]
    return max(there, default=None)
