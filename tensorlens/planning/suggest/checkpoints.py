"""Blocks that keep their inputs alone, and compute the rest again in backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.blocks import Blocks, Call, repeated
from tensorlens.planning.suggest.recorded_steps import Candidate, EventRange, RecordedSteps, Replay
from tensorlens.records.events import ALLOC, FREE

_RANDOM_STATE = 5056
"""Bytes of the CPU generator's state that ``torch.utils.checkpoint`` keeps for each call."""


def checkpointed(record: RecordedSteps) -> Iterator[Candidate]:
    """Give the change to checkpoints of all repeated blocks.

    What a block's forward keeps for backward dies at its end, but for its output, which is the
    input of what follows. When backward comes to the block its forward runs once more, as far as
    something in it is needed, and what it keeps is there until backward has used it.
    """
    blocks = repeated(record)
    where = Blocks(record, blocks)
    found = where.calls()
    if not found or _is_on(record, found):
        return
    replay = record.replay()
    inputs = keep_inputs(record, replay, found)
    for call in found:
        _checkpoint(record, replay, where, call, inputs)
    names = {call.block for call in found}
    used = [block for number, block in enumerate(blocks) if number in names]
    yield Candidate(
        kind="checkpoint",
        change=f"checkpoint {len(used)} blocks",
        what=_called(used),
        code=_code(record, used),
        peak=replay.peak()[0],
        cost=cost_of(record, found) + _of_caches(record),
        settings={"checkpoint": "blocks"},
    )


def _checkpoint(
    record: RecordedSteps,
    replay: Replay,
    where: Blocks,
    call: Call,
    inputs: Mapping[int | None, int],
) -> None:
    kept = [
        row
        for row in record.allocations(call.forward)
        if record.end(row) >= call.forward.end and record.phase(row) == "forward"
    ]
    # freed by another part of the program: it is there for others than this block's backward
    needed = [
        row
        for row in kept
        if record.end(row) in call.backward and where.of(record.end(row)) == call.block
    ]
    output = output_of(record, needed) if len(needed) == len(kept) else None
    for row in needed:
        if row in inputs:
            replay.keep_apart(row, min(inputs[row], record.end(row)))
        else:
            # what follows may keep the output, as long as until it is computed again
            end = call.backward.begin if row == output else call.forward.end
            replay.keep_apart(row, end)
    if needed:
        replay.insert(call.backward.begin, recomputation(record, call.forward, needed))
        if record.device == "cpu":
            replay.add(_RANDOM_STATE, call.forward.begin, call.backward.end)


def _is_on(record: RecordedSteps, found: Sequence[Call]) -> bool:
    """Tell whether blocks are computed again already."""
    study = record.study
    return any(
        study.computed_again(study.place(row))
        for call in found
        for row in range(call.backward.begin, call.backward.end)
    )


def _called(blocks: Sequence[RepeatedBlock]) -> str:
    lists = Counter((_list(block), block.kind or "block") for block in blocks)
    return ", ".join(f"{count} x {kind} in {path}" for (path, kind), count in lists.items())


def _of_caches(record: RecordedSteps) -> str:
    if record.facts is None or not record.facts.has_cache:
        return ""
    return "; use_cache=False: each block would fill its cache twice"


def _code(record: RecordedSteps, blocks: Sequence[RepeatedBlock]) -> str:
    models = list(dict.fromkeys(block.path.partition(".")[0] for block in blocks))
    facts = record.facts
    of_models = []
    if facts is not None and facts.has_cache:
        of_models += [f"{model}.config.use_cache = False" for model in models]
    if facts is not None and facts.own_checkpoints:
        of_models += [f"{model}.{facts.own_checkpoints}" for model in models]
    else:
        of_models.append(_loop(blocks))
    return "\n".join(of_models)


def _loop(blocks: Sequence[RepeatedBlock]) -> str:
    lists = list(dict.fromkeys(map(_list, blocks)))
    several = f"[{', '.join(f'*{path}' for path in lists)}]"
    return (
        "from functools import partial\n"
        "from torch.utils.checkpoint import checkpoint\n"
        f"for block in {lists[0] if len(lists) == 1 else several}:\n"
        "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    )


def _list(block: RepeatedBlock) -> str:
    """Return what holds a block, as Python has it: ``model[1].layers``."""
    first, *inner = block.path.split(".")[:-1] or [block.path]
    return first + "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in inner)


def keep_inputs(
    record: RecordedSteps, replay: Replay, calls: Sequence[Call]
) -> dict[int | None, int]:
    """Let the calls' inputs stay until backward is through with each; return until when."""
    inputs = {_input_of(record, call): call.backward.end for call in calls}
    for row, until in inputs.items():
        if row is not None and record.end(row) < until:
            replay.free(row, until)
    return inputs


def _input_of(record: RecordedSteps, call: Call) -> int | None:
    """Return what is likely a block's input, which a checkpoint keeps until backward is through.

    What was made last before the call and is there when it begins.
    """
    begin = call.forward.begin
    step = next((span.begin for span in record.steps if begin in span), 0)
    made = [
        row
        for row in record.allocations(EventRange(step, begin))
        if record.phase(row) == "forward" and record.end(row) > begin
    ]
    return output_of(record, made)


def recomputation(
    record: RecordedSteps, forward: EventRange, needed: Sequence[int]
) -> Iterator[int]:
    """Give what a block's forward hands out and frees when it runs once more.

    It ends with the last thing that backward needs; what it had besides is freed then.
    """
    log, there, wanted = record.log, 0, set(needed)
    last = max(needed)
    for row in range(forward.begin, last + 1):
        if log.device[row] != record.number:
            continue
        if log.kind[row] == ALLOC:
            yield log.size[row]
            there += 0 if row in wanted else log.size[row]
        elif log.kind[row] == FREE and log.pair[row] >= forward.begin:
            yield -log.size[log.pair[row]]
            there -= log.size[log.pair[row]]
    yield -there


def output_of(record: RecordedSteps, kept: Sequence[int]) -> int | None:
    """Return what is likely the output: of what the last operator kept, the largest."""
    if not kept:
        return None
    last = record.study.place(max(kept))
    alike = [row for row in kept if record.study.place(row) == last]
    return max(alike, key=lambda row: record.log.size[row])


def cost_of(record: RecordedSteps, found: Sequence[Call]) -> str:
    """Return what the second forward takes, by the last step that was recorded."""
    span = next((step for step in reversed(record.steps) if found[-1].forward.begin in step), None)
    text = "their forward runs twice"
    if span is None:
        return text
    time = record.log.time
    end = min(span.end, len(time) - 1)
    whole = time[end] - time[span.begin]
    second = sum(
        time[call.forward.end - 1] - time[call.forward.begin]
        for call in found
        if call.forward.begin in span
    )
    return f"{text}: about +{100 * second / whole:.0f} % time" if whole > 0 else text
