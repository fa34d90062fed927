"""Repeated blocks of models: their calls in a recording, and the cost of a second forward."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import RecordedSteps, Replay, ranges_by_key
from tensorlens.records.logs.events import ALLOC, FREE
from tensorlens.records.logs.stacks import Stacks

TWICE = "their forward runs twice"


@dataclass(frozen=True, slots=True)
class Call:
    """Rows of one call of a block and of its backward."""

    block: int
    forward: range
    backward: range


def repeated_paths(paths: Iterable[str]) -> Sequence[str]:
    """Return the outermost module paths that look like repeated blocks.

    These are numbered (``layers.0``), two or more in one module, with the same modules inside.
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
    return sorted(outermost, key=_natural_key)


class RepeatedBlocks:
    """The repeated blocks in a recording: from the program's facts, else by the module paths."""

    def __init__(self, recorded: RecordedSteps) -> None:
        self._recorded = recorded
        self._blocks: Sequence[RepeatedBlock] = recorded.facts.blocks
        if not recorded.has_facts:
            paths = repeated_paths(recorded.log.stacks.modules)
            self._blocks = [RepeatedBlock(path, "") for path in paths]
        self._block_numbers = _block_numbers(recorded.log.stacks, self._blocks)

    def called(self, calls: Sequence[Call]) -> Sequence[RepeatedBlock]:
        """Return the blocks of the calls."""
        numbers = {call.block for call in calls}
        return [block for number, block in enumerate(self._blocks) if number in numbers]

    def number_of(self, row: int) -> int:
        """Return the number of an event's block, in backward by its node; -1: none."""
        recorded = self._recorded
        site = recorded.index.site(row)
        stack = site.context.forward if site.phase == "backward" else site.stack
        return -1 if stack < 0 else self._block_numbers[stack]

    def calls(self) -> Sequence[Call]:
        """Return the calls that have a backward, in the program's order."""
        log, phase = self._recorded.log, self._recorded.phase
        rows = [row for row in range(len(log)) if phase(row) != "other"]
        backward_rows: dict[int, list[int]] = {}
        for row in rows:
            if phase(row) == "backward" and (block := self.number_of(row)) >= 0:
                backward_rows.setdefault(block, []).append(row)
        events = (row for row in rows if row >= log.starts)
        runs = ranges_by_key(
            events, lambda row: self.number_of(row) if phase(row) == "forward" else -1
        )
        forward = [(block, span) for block, span in runs if block >= 0]
        found = []
        for place, (block, span) in enumerate(forward):
            later = (after.start for other, after in forward[place + 1 :] if other == block)
            until = next(later, len(log))
            own = [row for row in backward_rows.get(block, ()) if span.stop <= row < until]
            if own:
                found.append(Call(block, span, range(own[0], own[-1] + 1)))
        return _without_overlap(found)


def _without_overlap(calls: Sequence[Call]) -> Sequence[Call]:
    """Return the calls, each backward cut where the next one begins.

    A gradient is sometimes attributed to a similar block of another call.
    """
    begins = sorted(call.backward.start for call in calls)
    found = []
    for call in calls:
        begin = call.backward.start
        following = next((row for row in begins if row > begin), call.backward.stop)
        found.append(replace(call, backward=range(begin, min(call.backward.stop, following))))
    return found


def _block_numbers(stacks: Stacks, blocks: Sequence[RepeatedBlock]) -> Sequence[int]:
    """Return the number of the outermost block of each node of the stacks; -1: none."""
    numbers = {block.path: number for number, block in enumerate(blocks)}
    of_module = [numbers.get(path, -1) for path in stacks.modules]
    found = array("i")
    for parent, module in zip(stacks.parent, stacks.module, strict=True):
        outer = -1 if parent < 0 else found[parent]
        found.append(outer if outer >= 0 or module < 0 else of_module[module])
    return found


def _natural_key(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.split(".")]


def keep_inputs(recorded: RecordedSteps, replay: Replay, calls: Sequence[Call]) -> dict[int, int]:
    """Keep each call's input until its backward has ended; map its row to that end."""
    inputs: dict[int, int] = {}
    for call in calls:
        row = _input_of(recorded, call)
        if row is not None:
            inputs[row] = max(call.backward.stop, inputs.get(row, 0))
    for row, until in inputs.items():
        if recorded.end(row) < until:
            replay.free(row, until)
    return inputs


def _input_of(recorded: RecordedSteps, call: Call) -> int | None:
    """Return the likely input of a call: made last before it, and there when it begins."""
    begin = call.forward.start
    step = next((span.start for span in recorded.steps if begin in span), 0)
    made = [
        row
        for row in recorded.allocations(range(step, begin))
        if recorded.phase(row) == "forward" and recorded.end(row) > begin
    ]
    return output_of(recorded, made)


def blocks_after_forward(recorded: RecordedSteps, call: Call) -> list[int]:
    """Return the memory blocks that a call's forward made and did not free."""
    return [
        row
        for row in recorded.allocations(call.forward)
        if recorded.end(row) >= call.forward.stop and recorded.phase(row) == "forward"
    ]


def output_of(recorded: RecordedSteps, kept: Sequence[int]) -> int | None:
    """Return the likely output: the largest block that the last operator left."""
    if not kept:
        return None
    last = recorded.index.site(max(kept))
    alike = [row for row in kept if recorded.index.site(row) == last]
    return max(alike, key=lambda row: recorded.log.size[row])


def second_forward(recorded: RecordedSteps, forward: range, needed: Sequence[int]) -> Iterator[int]:
    """Yield the allocations, and frees as negative sizes, of a forward that runs again.

    It ends with the last block that backward needs, when all other blocks are freed.
    """
    log, unneeded, wanted = recorded.log, 0, set(needed)
    last = max(needed)
    for row in range(forward.start, last + 1):
        if log.device[row] != recorded.number:
            continue
        if log.kind[row] == ALLOC:
            yield log.size[row]
            unneeded += 0 if row in wanted else log.size[row]
        elif log.kind[row] == FREE and log.pair[row] >= forward.start:
            yield -log.size[log.pair[row]]
            unneeded -= log.size[log.pair[row]]
    yield -unneeded


def time_cost(recorded: RecordedSteps, found: Sequence[Call]) -> str:
    """Return the cost in time of the second forward, from the last recorded step."""
    span = next(
        (step for step in reversed(recorded.steps) if found[-1].forward.start in step), None
    )
    if span is None:
        return TWICE
    time = recorded.log.time
    whole = time[min(span.stop, len(time) - 1)] - time[span.start]
    calls = [call.forward for call in found if call.forward.start in span]
    second = sum(time[each.stop - 1] - time[each.start] for each in calls)
    return f"{TWICE}: about +{100 * second / whole:.0f} % time" if whole > 0 else TWICE
