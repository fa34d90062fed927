"""The blocks that a model repeats, and their calls, found in a recording."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tensorlens.planning.step_facts import RepeatedBlock
from tensorlens.planning.suggest.recorded_steps import EventRange, RecordedSteps
from tensorlens.records.events import Stacks


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a block, and the part of the backward pass that goes back to it."""

    block: int
    forward: EventRange
    backward: EventRange


def repeated(record: RecordedSteps) -> Sequence[RepeatedBlock]:
    """Return the blocks: those that the program told, else what paths of modules tell."""
    if record.facts is not None:
        return record.facts.blocks
    return [RepeatedBlock(path, "") for path in repeated_paths(record.log.stacks.modules)]


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

    Args:
        record: the recording.
        blocks: the blocks.
    """

    def __init__(self, record: RecordedSteps, blocks: Sequence[RepeatedBlock]) -> None:
        self._record = record
        self._inside = _inside(record.log.stacks, blocks)

    def of(self, row: int) -> int:
        """Return the number of the block that an event is of, in backward by its node; -1: none."""
        record = self._record
        place = record.study.place(row)
        stack = place[0]
        if record.phase(row) == "backward":
            stack = record.study.context(place).forward
        return -1 if stack < 0 else self._inside[stack]

    def calls(self) -> Sequence[Call]:
        """Return the calls that a backward pass goes back to, in the order of the program."""
        forward = self._forward()
        back: dict[int, list[int]] = {}
        for row in range(len(self._record.log)):
            if self._record.phase(row) == "backward" and (block := self.of(row)) >= 0:
                back.setdefault(block, []).append(row)
        found = []
        for place, (block, span) in enumerate(forward):
            later = (after.begin for other, after in forward[place + 1 :] if other == block)
            until = next(later, len(self._record.log))
            rows = [row for row in back.get(block, ()) if span.end <= row < until]
            if rows:
                found.append(Call(block, span, EventRange(rows[0], rows[-1] + 1)))
        return _apart(found)

    def _forward(self) -> list[tuple[int, EventRange]]:
        """Return the blocks in the order in which they were called, with the rows of each call."""
        record, last = self._record, -1
        found: list[tuple[int, EventRange]] = []
        for row in range(record.log.starts, len(record.log)):
            phase = record.phase(row)
            block = self.of(row) if phase == "forward" else -1
            if block >= 0:
                begin = found.pop()[1].begin if block == last else row
                found.append((block, EventRange(begin, row + 1)))
            if phase != "other":
                last = block
        return found


def _apart(calls: Sequence[Call]) -> Sequence[Call]:
    """Return calls whose backward ends where that of another one begins.

    What a gradient goes back to is not always found, and may be taken for the like in a later call.
    """
    begins = sorted(call.backward.begin for call in calls)
    found = []
    for call in calls:
        begin = call.backward.begin
        following = next((row for row in begins if row > begin), call.backward.end)
        found.append(replace(call, backward=EventRange(begin, min(call.backward.end, following))))
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
