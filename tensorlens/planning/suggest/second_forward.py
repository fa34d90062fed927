"""What a block's forward takes when it runs a second time, in backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.planning.suggest.blocks import Call
from tensorlens.planning.suggest.recorded_steps import Scene, Span
from tensorlens.planning.suggest.replay import Replay
from tensorlens.records.events import ALLOC, FREE


def keep_inputs(scene: Scene, replay: Replay, calls: Sequence[Call]) -> dict[int | None, int]:
    """Let the calls' inputs stay until backward is through with each; return until when."""
    inputs = {_input_of(scene, call): call.backward.end for call in calls}
    for row, until in inputs.items():
        if row is not None and scene.end(row) < until:
            replay.free(row, until)
    return inputs


def _input_of(scene: Scene, call: Call) -> int | None:
    """Return what is likely a block's input, which a checkpoint keeps until backward is through.

    What was made last before the call and is there when it begins.
    """
    begin = call.forward.begin
    step = next((span.begin for span in scene.steps if begin in span), 0)
    made = [
        row
        for row in scene.allocations(Span(step, begin))
        if scene.phase(row) == "forward" and scene.end(row) > begin
    ]
    return output_of(scene, made)


def again(scene: Scene, forward: Span, needed: Sequence[int]) -> Iterator[int]:
    """Give what a block's forward hands out and frees when it runs once more.

    It ends with the last thing that backward needs; what it had besides is freed then.
    """
    log, there, wanted = scene.log, 0, set(needed)
    last = max(needed)
    for row in range(forward.begin, last + 1):
        if log.device[row] != scene.number:
            continue
        if log.kind[row] == ALLOC:
            yield log.size[row]
            there += 0 if row in wanted else log.size[row]
        elif log.kind[row] == FREE and log.pair[row] >= forward.begin:
            yield -log.size[log.pair[row]]
            there -= log.size[log.pair[row]]
    yield -there


def output_of(scene: Scene, kept: Sequence[int]) -> int | None:
    """Return what is likely the output: of what the last operator kept, the largest."""
    if not kept:
        return None
    last = scene.study.place(max(kept))
    alike = [row for row in kept if scene.study.place(row) == last]
    return max(alike, key=lambda row: scene.log.size[row])


def cost_of(scene: Scene, found: Sequence[Call]) -> str:
    """Return what the second forward takes, by the last step that was recorded."""
    span = next((step for step in reversed(scene.steps) if found[-1].forward.begin in step), None)
    text = "their forward runs twice"
    if span is None:
        return text
    time = scene.log.time
    end = min(span.end, len(time) - 1)
    whole = time[end] - time[span.begin]
    second = sum(
        time[call.forward.end - 1] - time[call.forward.begin]
        for call in found
        if call.forward.begin in span
    )
    return f"{text}: about +{100 * second / whole:.0f} % time" if whole > 0 else text
