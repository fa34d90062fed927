"""Repeated blocks of a model that keep their inputs alone and compute the rest again in backward.

Of torch by ``torch.utils.checkpoint``, of Keras layers by ``tf.recompute_grad``.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import RecordedSteps, Replay, stretches
from tensorlens.planning.suggest.result import Suggestion
from tensorlens.records.events import ALLOC, FREE
from tensorlens.records.stacks import Stacks

_TWICE = "their forward runs twice"
_RANDOM_STATE = 5056
"""Bytes of the CPU generator's state that ``torch.utils.checkpoint`` keeps for each call."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a block, and the part of the backward pass that goes back to it."""

    block: int
    forward: range
    backward: range


def repeated_paths(paths: Iterable[str]) -> Sequence[str]:
    """Return the outermost paths that look like repeated blocks.

    They are numbered (``layers.0``), two or more below one module, with the same modules inside.
    """
    known = set(paths)
    inside: dict[str, set[str]] = {}
    for path in known:
        parts = path.split(".")
        for depth in range(1, len(parts)):
            if parts[depth - 1].isdigit():
                inside.setdefault(".".join(parts[:depth]), set()).add(".".join(parts[depth:]))
    alike: dict[tuple[str, frozenset[str]], list[str]] = {}
    for path, children in inside.items():
        alike.setdefault((path.rpartition(".")[0], frozenset(children)), []).append(path)
    found = {path for group in alike.values() if len(group) > 1 for path in group}
    outermost = [path for path in found if not any(path.startswith(f"{each}.") for each in found)]
    return sorted(outermost, key=_natural)


class Blocks:
    """Where the blocks are in a recording.

    They are those that the program told, else what paths of modules tell.
    """

    def __init__(self, record: RecordedSteps) -> None:
        self._record = record
        self._blocks: Sequence[RepeatedBlock] = record.facts.blocks
        if record.is_alone:
            paths = repeated_paths(record.log.stacks.modules)
            self._blocks = [RepeatedBlock(path, "") for path in paths]
        self._inside = _inside(record.log.stacks, self._blocks)

    def used(self, calls: Sequence[Call]) -> Sequence[RepeatedBlock]:
        """Return the blocks that are called."""
        numbers = {call.block for call in calls}
        return [block for number, block in enumerate(self._blocks) if number in numbers]

    def of(self, row: int) -> int:
        """Return the number of the block that an event is of, in backward by its node; -1: none."""
        record = self._record
        place = record.index.place(row)
        stack = place[0]
        if record.phase(row) == "backward":
            stack = record.index.context(place).forward
        return -1 if stack < 0 else self._inside[stack]

    def calls(self) -> Sequence[Call]:
        """Return the calls that a backward pass goes back to, in the order of the program."""
        log, phase = self._record.log, self._record.phase
        rows = [row for row in range(len(log)) if phase(row) != "other"]
        back: dict[int, list[int]] = {}
        for row in rows:
            if phase(row) == "backward" and (block := self.of(row)) >= 0:
                back.setdefault(block, []).append(row)
        recorded = (row for row in rows if row >= log.starts)
        runs = stretches(recorded, lambda row: self.of(row) if phase(row) == "forward" else -1)
        forward = [(block, span) for block, span in runs if block >= 0]
        found = []
        for place, (block, span) in enumerate(forward):
            later = (after.start for other, after in forward[place + 1 :] if other == block)
            until = next(later, len(log))
            rows = [row for row in back.get(block, ()) if span.stop <= row < until]
            if rows:
                found.append(Call(block, span, range(rows[0], rows[-1] + 1)))
        return _apart(found)


def _apart(calls: Sequence[Call]) -> Sequence[Call]:
    """Return calls whose backward ends where that of another one begins.

    What a gradient goes back to is not always found, and may be taken for the like in a later call.
    """
    begins = sorted(call.backward.start for call in calls)
    found = []
    for call in calls:
        begin = call.backward.start
        following = next((row for row in begins if row > begin), call.backward.stop)
        found.append(replace(call, backward=range(begin, min(call.backward.stop, following))))
    return found


def _inside(stacks: Stacks, blocks: Sequence[RepeatedBlock]) -> Sequence[int]:
    """Return for each node of the stacks the outermost block that it is in; -1: none."""
    numbers = {block.path: number for number, block in enumerate(blocks)}
    of_module = [numbers.get(path, -1) for path in stacks.modules]
    found = array("i")
    for parent, module in zip(stacks.parent, stacks.module, strict=True):
        outer = -1 if parent < 0 else found[parent]
        found.append(outer if outer >= 0 or module < 0 else of_module[module])
    return found


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def block_checkpoints(record: RecordedSteps) -> Iterator[Suggestion]:
    """Give the change to checkpoints of all repeated blocks.

    What a block's forward keeps for backward dies at its end, but for its output, which is the
    input of what follows. When backward comes to the block its forward runs once more, as far as
    something in it is needed, and what it keeps is there until backward has used it.
    """
    where = Blocks(record)
    found, index = where.calls(), record.index
    backward = (row for call in found for row in call.backward)
    if not found or any(index.computed_again(index.place(row)) for row in backward):
        return
    replay = record.replay()
    inputs = _keep_inputs(record, replay, found)
    for call in found:
        _checkpoint(record, replay, where, call, inputs)
    used = where.used(found)
    cost = _cost_of(record, found)
    if record.facts.has_cache:
        cost += "; use_cache=False: each block would fill its cache twice"
    yield record.suggestion(
        kind="checkpoint",
        change=f"checkpoint {len(used)} blocks",
        what=_called(used),
        code=_code(record, used),
        peak=replay.peak(),
        cost=cost,
        settings=("checkpoint=blocks",),
    )


def _checkpoint(
    record: RecordedSteps,
    replay: Replay,
    where: Blocks,
    call: Call,
    inputs: Mapping[int | None, int],
) -> None:
    kept = _outliving(record, call)
    # freed by another part of the program: it is there for others than this block's backward
    needed = [
        row
        for row in kept
        if record.end(row) in call.backward and where.of(record.end(row)) == call.block
    ]
    output = _output_of(record, needed) if len(needed) == len(kept) else None
    for row in needed:
        if row in inputs:
            replay.keep_apart(row, min(inputs[row], record.end(row)))
        else:
            # what follows may keep the output, as long as until it is computed again
            end = call.backward.start if row == output else call.forward.stop
            replay.keep_apart(row, end)
    if needed:
        replay.insert(call.backward.start, _recomputation(record, call.forward, needed))
        if record.device == "cpu":
            replay.add(_RANDOM_STATE, call.forward.start, call.backward.stop)


def _called(blocks: Sequence[RepeatedBlock]) -> str:
    lists = Counter((_list(block), block.kind or "block") for block in blocks)
    return ", ".join(f"{count} x {kind} in {path}" for (path, kind), count in lists.items())


def _code(record: RecordedSteps, blocks: Sequence[RepeatedBlock]) -> str:
    models = dict.fromkeys(block.path.partition(".")[0] for block in blocks)
    facts = record.facts
    lines = [f"{model}.config.use_cache = False" for model in models if facts.has_cache]
    if facts.own_checkpoints:
        lines += [f"{model}.{facts.own_checkpoints}" for model in models]
    else:
        lines.append(_loop(blocks))
    return "\n".join(lines)


def _loop(blocks: Sequence[RepeatedBlock]) -> str:
    """Return the loop over blocks: over ``net[1:5]`` where others come before them."""
    places: dict[str, list[int]] = {}
    for block in blocks:
        last = block.path.rpartition(".")[2]
        places.setdefault(_list(block), []).append(int(last) if last.isdigit() else 0)
    lists = [f"{path}[{min(at)}:{max(at) + 1}]" if min(at) else path for path, at in places.items()]
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


def _keep_inputs(
    record: RecordedSteps, replay: Replay, calls: Sequence[Call]
) -> dict[int | None, int]:
    """Let the calls' inputs stay until backward is through with each; return until when."""
    inputs = {_input_of(record, call): call.backward.stop for call in calls}
    for row, until in inputs.items():
        if row is not None and record.end(row) < until:
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
    return _output_of(record, made)


def _recomputation(record: RecordedSteps, forward: range, needed: Sequence[int]) -> Iterator[int]:
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


def _output_of(record: RecordedSteps, kept: Sequence[int]) -> int | None:
    """Return what is likely the output: of what the last operator kept, the largest."""
    if not kept:
        return None
    last = record.index.place(max(kept))
    alike = [row for row in kept if record.index.place(row) == last]
    return max(alike, key=lambda row: record.log.size[row])


def _cost_of(record: RecordedSteps, found: Sequence[Call]) -> str:
    """Return what the second forward takes, by the last step that was recorded."""
    span = next((step for step in reversed(record.steps) if found[-1].forward.start in step), None)
    if span is None:
        return _TWICE
    time = record.log.time
    whole = time[min(span.stop, len(time) - 1)] - time[span.start]
    calls = [call.forward for call in found if call.forward.start in span]
    second = sum(time[each.stop - 1] - time[each.start] for each in calls)
    return f"{_TWICE}: about +{100 * second / whole:.0f} % time" if whole > 0 else _TWICE


def block_recomputation(record: RecordedSteps) -> Iterator[Suggestion]:
    """Give the change to ``tf.recompute_grad`` of all repeated blocks, where tapes were recorded.

    What a block's forward keeps dies at its end, but for its output, which the gradient function
    of ``tf.custom_gradient`` holds, as it does the input. When backward comes to the block its
    forward runs once more on a tape of its own; the gradient it is given, and its output, are
    there until it is through (``custom_gradient.py`` of TensorFlow 2.21).
    """
    where = Blocks(record)
    found = where.calls()
    if not found or record.facts.recomputes:
        return
    replay = record.replay()
    inputs = _keep_inputs(record, replay, found)
    for call in found:
        _recompute(record, replay, call, inputs)
    cost = _cost_of(record, found)
    yield recompute_suggestion(record, where.used(found), replay.peak(), cost)


def recompute_suggestion(
    record: RecordedSteps, blocks: Sequence[RepeatedBlock], peak: int = 0, cost: str = _TWICE
) -> Suggestion:
    """Return the change; ``peak`` 0 where it is still to be simulated."""
    classes = Counter(block.kind or "block" for block in blocks)
    paths = [block.path for block in blocks]
    shown = paths if len(paths) < 4 else [*paths[:2], "...", paths[-1]]
    names = ", ".join(f'"{path.rpartition("/")[2]}"' for path in paths)
    return record.suggestion(
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


def _outliving(record: RecordedSteps, call: Call) -> list[int]:
    """Return what a block's forward made and left."""
    return [
        row
        for row in record.allocations(call.forward)
        if record.end(row) >= call.forward.stop and record.phase(row) == "forward"
    ]


def _recompute(
    record: RecordedSteps, replay: Replay, call: Call, inputs: Mapping[int | None, int]
) -> None:
    until = call.backward.stop
    kept = _outliving(record, call)
    needed = [row for row in kept if record.end(row) in call.backward]
    if not needed:
        return
    output = _output_of(record, kept)
    for row in needed:
        if row == output:
            replay.keep_apart(row, max(until, inputs.get(row, 0)))
            # the second one stays to the end as well
            replay.add(record.log.size[row], record.end(row), until)
        else:
            replay.keep_apart(row, call.forward.stop)
    replay.insert(call.backward.start, _recomputation(record, call.forward, needed))
    given = _given(record, call)
    if given is not None:
        replay.free(given, until)


def _given(record: RecordedSteps, call: Call) -> int | None:
    """Return what is likely the gradient that a block's backward is given: the newest there."""
    rows = record.allocations(range(call.forward.stop, call.backward.start))
    there = [
        row for row in rows if record.phase(row) == "backward" and record.end(row) in call.backward
    ]
    return max(there, default=None)
