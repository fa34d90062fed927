"""What a block's forward keeps where it runs twice, what the second one takes, and its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.planning.suggest.recorded_steps import RecordedSteps, Replay
from tensorlens.planning.suggest.repeated_blocks import Call
from tensorlens.records.logs.events import ALLOC, FREE

TWICE = "their forward runs twice"


def keep_inputs(record: RecordedSteps, replay: Replay, calls: Sequence[Call]) -> dict[int, int]:
    """Let the calls' inputs stay until backward is through with each; return until when."""
    inputs: dict[int, int] = {}
    for call in calls:
        row = _input_of(record, call)
        if row is not None:
            inputs[row] = max(call.backward.stop, inputs.get(row, 0))
    for row, until in inputs.items():
        if record.end(row) < until:
            replay.free(row, until)
    return inputs


def _input_of(record: RecordedSteps, call: Call) -> int | None:
    """Return what is likely a block's input: made last before the call, there when it begins."""
    begin = call.forward.start
    step = next((span.start for span in record.steps if begin in span), 0)
    made = [
        row
        for row in record.allocations(range(step, begin))
        if record.phase(row) == "forward" and record.end(row) > begin
    ]
    return output_of(record, made)


def outliving(record: RecordedSteps, call: Call) -> list[int]:
    """Return what a block's forward made and left."""
    return [
        row
        for row in record.allocations(call.forward)
        if record.end(row) >= call.forward.stop and record.phase(row) == "forward"
    ]


def output_of(record: RecordedSteps, kept: Sequence[int]) -> int | None:
    """Return what is likely the output: of what the last operator kept, the largest."""
    if not kept:
        return None
    last = record.index.place(max(kept))
    alike = [row for row in kept if record.index.place(row) == last]
    return max(alike, key=lambda row: record.log.size[row])


def second_forward(record: RecordedSteps, forward: range, needed: Sequence[int]) -> Iterator[int]:
    """Give what a block's forward hands out and frees when it runs once more.

    It ends with the last thing that backward needs; what it had besides is freed then.
    """
    log, there, wanted = record.log, 0, set(needed)
    last = max(needed)
    for row in range(forward.start, last + 1):
        if log.device[row] != record.number:
            continue
        if log.kind[row] == ALLOC:
            yield log.size[row]
            there += 0 if row in wanted else log.size[row]
        elif log.kind[row] == FREE and log.pair[row] >= forward.start:
            yield -log.size[log.pair[row]]
            there -= log.size[log.pair[row]]
    yield -there


def cost_of(record: RecordedSteps, found: Sequence[Call]) -> str:
    """Return what the second forward takes, by the last step that was recorded."""
    span = next((step for step in reversed(record.steps) if found[-1].forward.start in step), None)
    if span is None:
        return TWICE
    time = record.log.time
    whole = time[min(span.stop, len(time) - 1)] - time[span.start]
    calls = [call.forward for call in found if call.forward.start in span]
    second = sum(time[each.stop - 1] - time[each.start] for each in calls)
    return f"{TWICE}: about +{100 * second / whole:.0f} % time" if whole > 0 else TWICE
