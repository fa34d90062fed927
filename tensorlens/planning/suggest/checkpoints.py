"""Suggests ``torch.utils.checkpoint`` for repeated blocks, which then keep only their inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import RecordedSteps, Replay
from tensorlens.planning.suggest.repeated_blocks import (
    Call,
    RepeatedBlocks,
    blocks_after_forward,
    keep_inputs,
    output_of,
    second_forward,
    time_cost,
)
from tensorlens.planning.suggest.result import Suggestion

_RANDOM_STATE = 5056
"""Bytes of the CPU generator's state, which ``torch.utils.checkpoint`` keeps for each call."""


def block_checkpoints(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield the change that checkpoints all repeated blocks.

    Tensors that a block's forward saves for backward are freed at its end, except for its output,
    the input of what follows. When backward comes to the block, its forward runs again up to the
    last saved tensor, and its saved tensors stay until backward has used them.
    """
    blocks = RepeatedBlocks(recorded)
    calls, index = blocks.calls(), recorded.index
    backward = (row for call in calls for row in call.backward)
    if not calls or any(index.site(row).computed_again for row in backward):
        return
    replay = recorded.replay()
    inputs = keep_inputs(recorded, replay, calls)
    for call in calls:
        _checkpoint(recorded, replay, blocks, call, inputs)
    used = blocks.called(calls)
    cost = time_cost(recorded, calls)
    if recorded.facts.has_cache:
        cost += "; use_cache=False: each block would fill its cache twice"
    yield recorded.suggestion(
        kind="checkpoint",
        change=f"checkpoint {len(used)} blocks",
        what=_summary(used),
        code=_code(recorded, used),
        peak=replay.peak(),
        cost=cost,
        settings=("checkpoint=blocks",),
    )


def _checkpoint(
    recorded: RecordedSteps,
    replay: Replay,
    blocks: RepeatedBlocks,
    call: Call,
    inputs: Mapping[int, int],
) -> None:
    kept = blocks_after_forward(recorded, call)
    # memory that other parts of the program free is not for this block's backward alone
    needed = [
        row
        for row in kept
        if recorded.end(row) in call.backward and blocks.number_of(recorded.end(row)) == call.block
    ]
    output = output_of(recorded, needed) if len(needed) == len(kept) else None
    for row in needed:
        if row in inputs:
            replay.free_first_copy(row, min(inputs[row], recorded.end(row)))
        else:
            # what follows may keep the output until it is computed again
            end = call.backward.start if row == output else call.forward.stop
            replay.free_first_copy(row, end)
    if needed:
        replay.insert(call.backward.start, second_forward(recorded, call.forward, needed))
        if recorded.device == "cpu":
            replay.add(_RANDOM_STATE, call.forward.start, call.backward.stop)


def _summary(blocks: Sequence[RepeatedBlock]) -> str:
    lists = Counter((_container(block), block.kind or "block") for block in blocks)
    return ", ".join(f"{count} x {kind} in {path}" for (path, kind), count in lists.items())


def _code(recorded: RecordedSteps, blocks: Sequence[RepeatedBlock]) -> str:
    models = dict.fromkeys(block.path.partition(".")[0] for block in blocks)
    facts = recorded.facts
    lines = [f"{model}.config.use_cache = False" for model in models if facts.has_cache]
    if facts.own_checkpoints:
        lines += [f"{model}.{facts.own_checkpoints}" for model in models]
    else:
        lines.append(_loop(blocks))
    return "\n".join(lines)


def _loop(blocks: Sequence[RepeatedBlock]) -> str:
    """Return code that loops over these blocks and no other module of their containers."""
    by_container: dict[str, list[RepeatedBlock]] = {}
    for block in blocks:
        by_container.setdefault(_container(block), []).append(block)
    parts = [_iterable(path, inside) for path, inside in by_container.items()]
    several = f"[{', '.join(f'*{part}' for part in parts)}]"
    return (
        "from functools import partial\n"
        "from torch.utils.checkpoint import checkpoint\n"
        f"for block in {parts[0] if len(parts) == 1 else several}:\n"
        "    block.forward = partial(checkpoint, block.forward, use_reentrant=False)"
    )


def _iterable(path: str, blocks: Sequence[RepeatedBlock]) -> str:
    """Return an expression for blocks of one container: ``net.layers``, ``net[1:4]``."""
    names = tuple(block.path.rpartition(".")[2] for block in blocks)
    length = blocks[0].list_length
    if length == 0 or not all(map(str.isdigit, names)):
        return f"map({path}.get_submodule, {names})"
    places = sorted(map(int, names))
    if places != [*range(places[0], places[-1] + 1)]:
        return f"[{', '.join(f'{path}[{place}]' for place in places)}]"
    return path if len(places) == length else f"{path}[{places[0]}:{places[-1] + 1}]"


def _container(block: RepeatedBlock) -> str:
    """Return the expression for the module that holds a block: ``model[1].layers``."""
    first, *inner = block.path.split(".")[:-1] or [block.path]
    return first + "".join(f"[{each}]" if each.isdigit() else f".{each}" for each in inner)
