"""Blocks that a model repeats, and their calls in a recording."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import RecordedSteps, stretches
from tensorlens.records.logs.stacks import Stacks


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


class RepeatedBlocks:
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

    def number_of(self, row: int) -> int:
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
            if phase(row) == "backward" and (block := self.number_of(row)) >= 0:
                back.setdefault(block, []).append(row)
        recorded = (row for row in rows if row >= log.starts)
        runs = stretches(
            recorded, lambda row: self.number_of(row) if phase(row) == "forward" else -1
        )
        forward = [(block, span) for block, span in runs if block >= 0]
        found = []
        for place, (block, span) in enumerate(forward):
            later = (after.start for other, after in forward[place + 1 :] if other == block)
            until = next(later, len(log))
            own = [row for row in back.get(block, ()) if span.stop <= row < until]
            if own:
                found.append(Call(block, span, range(own[0], own[-1] + 1)))
        return _without_overlap(found)


def _without_overlap(calls: Sequence[Call]) -> Sequence[Call]:
    """Return calls whose backward ends where that of another one begins.

    The block that a gradient belongs to is sometimes mistaken for a like block of a later call.
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
