"""Suggests ``tf.recompute_grad`` for repeated blocks of Keras: they keep only their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import RecordedSteps, Replay
from tensorlens.planning.suggest.repeated_blocks import (
    TWICE,
    Call,
    RepeatedBlocks,
    blocks_after_forward,
    keep_inputs,
    output_of,
    second_forward,
    time_cost,
)
from tensorlens.planning.suggest.result import Suggestion


def block_recomputation(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield ``tf.recompute_grad`` of all repeated blocks, unless the program recomputes already.

    Tensors that a block's forward saves are freed at its end, except for its input and its output,
    which the gradient function of ``tf.custom_gradient`` holds. When backward comes to the block,
    its forward runs again on a tape of its own; the gradient of its output, and its output, stay
    until the block's backward has ended (``custom_gradient.py`` of TensorFlow 2.21).
    """
    blocks = RepeatedBlocks(recorded)
    calls = blocks.calls()
    if not calls or recorded.facts.recomputes:
        return
    replay = recorded.replay()
    inputs = keep_inputs(recorded, replay, calls)
    for call in calls:
        _recompute(recorded, replay, call, inputs)
    cost = time_cost(recorded, calls)
    yield recompute_suggestion(recorded, blocks.called(calls), replay.peak(), cost)


def recompute_suggestion(
    recorded: RecordedSteps, blocks: Sequence[RepeatedBlock], peak: int = 0, cost: str = TWICE
) -> Suggestion:
    """Return the change; ``peak`` is 0 until it is simulated."""
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
    kept = blocks_after_forward(recorded, call)
    needed = [row for row in kept if recorded.end(row) in call.backward]
    if not needed:
        return
    output = output_of(recorded, kept)
    for row in needed:
        if row == output:
            replay.free_first_copy(row, max(until, inputs.get(row, 0)))
            # the second output stays to the end as well
            replay.add(recorded.log.size[row], recorded.end(row), until)
        else:
            replay.free_first_copy(row, call.forward.stop)
    replay.insert(call.backward.start, second_forward(recorded, call.forward, needed))
    gradient = _output_gradient(recorded, call)
    if gradient is not None:
        replay.free(gradient, until)


def _output_gradient(recorded: RecordedSteps, call: Call) -> int | None:
    """Return the likely gradient of a block's output: the newest that its backward frees."""
    rows = recorded.allocations(range(call.forward.stop, call.backward.start))
    there = [
        row
        for row in rows
        if recorded.phase(row) == "backward" and recorded.end(row) in call.backward
    ]
    return max(there, default=None)
