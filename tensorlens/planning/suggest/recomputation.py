"""Blocks of Keras layers that ``tf.recompute_grad`` computes again in backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.blocks import Blocks, Call, repeated
from tensorlens.planning.suggest.checkpoints import cost_of, keep_inputs, output_of, recomputation
from tensorlens.planning.suggest.recorded_steps import Candidate, EventRange, RecordedSteps, Replay
from tensorlens.planning.suggest.result import Method

RECOMPUTE = {"recompute": "blocks"}
"""The option of :func:`tensorlens.compare`."""


def recomputed(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to ``tf.recompute_grad`` of all repeated blocks, where tapes were recorded.

    What a block's forward keeps dies at its end, but for its output, which the gradient function
    of ``tf.custom_gradient`` holds, as it does the input. When backward comes to the block its
    forward runs once more on a tape of its own; the gradient it is given, and its output, are
    there until it is through (``custom_gradient.py`` of TensorFlow 2.21).
    """
    blocks = repeated(record)
    found = Blocks(record, blocks).calls()
    if not found or (record.facts is not None and record.facts.recomputes):
        return
    replay = record.replay()
    inputs = keep_inputs(record, replay, found)
    for call in found:
        _recompute(record, replay, call, inputs)
    names = {call.block for call in found}
    used = [block for number, block in enumerate(blocks) if number in names]
    yield recompute_candidate(used, replay.peak()[0], Method.REPLAYED, cost_of(record, found))


def is_replayed(record: RecordedSteps) -> bool:
    """Tell whether the recording has the calls of blocks, and what goes back to them."""
    return bool(Blocks(record, repeated(record)).calls())


def recompute_candidate(
    blocks: Sequence[RepeatedBlock], peak: int, how: Method, cost: str
) -> Candidate:
    """Return the change."""
    return Candidate(
        kind="checkpoint",
        change=f"recompute {len(blocks)} blocks",
        what=_called(blocks),
        code=_code(blocks),
        peak=peak,
        cost=cost,
        settings=RECOMPUTE,
        how=how,
    )


def _code(blocks: Sequence[RepeatedBlock]) -> str:
    names = ", ".join(f'"{block.path.rpartition("/")[2]}"' for block in blocks)
    return (
        "# before the model is called\n"
        "def recomputed(call):\n"
        "    def again(*given, **options):\n"
        "        return tf.recompute_grad(lambda *x: call(*x, **options))(*given)\n"
        "    return again\n"
        "for block in model._flatten_layers():\n"
        f"    if block.name in ({names}):\n"
        "        block.call = recomputed(block.call)"
    )


def _recompute(
    record: RecordedSteps, replay: Replay, call: Call, inputs: Mapping[int | None, int]
) -> None:
    until = call.backward.end
    kept = [
        row
        for row in record.allocations(call.forward)
        if record.end(row) >= call.forward.end and record.phase(row) == "forward"
    ]
    needed = [row for row in kept if record.end(row) in call.backward]
    if not needed:
        return
    output = output_of(record, kept)
    for row in needed:
        if row == output:
            replay.keep_apart(row, max(until, inputs.get(row, 0)))
            # the second one stays to the end as well
            replay.add(record.log.size[row], record.end(row), until)
        else:
            replay.keep_apart(row, call.forward.end)
    replay.insert(call.backward.begin, recomputation(record, call.forward, needed))
    given = _given(record, call)
    if given is not None:
        replay.free(given, until)


def _given(record: RecordedSteps, call: Call) -> int | None:
    """Return what is likely the gradient that a block's backward is given: the newest there."""
    rows = record.allocations(EventRange(call.forward.end, call.backward.begin))
    there = [
        row for row in rows if record.phase(row) == "backward" and record.end(row) in call.backward
    ]
    return max(there, default=None)


def _called(blocks: Sequence[RepeatedBlock]) -> str:
    classes = Counter(block.kind or "block" for block in blocks)
    names = [block.path for block in blocks]
    shown = names if len(names) < 4 else [*names[:2], "...", names[-1]]
    return f"{', '.join(f'{n} x {kind}' for kind, n in classes.items())}: {', '.join(shown)}"
