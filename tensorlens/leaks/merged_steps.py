"""The steps of one loop, followed in all frameworks in use, and who keeps blocks alive there.

Each framework numbers its own lines and knows its own tensors.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tensorlens.frameworks.base import UNKNOWN, Adapter, LeftBlocks, StepFigures, Steps
from tensorlens.frameworks.registry import ask, left_out
from tensorlens.frameworks.survivors import GraphRoot, Holdings, Retained, Survivor
from tensorlens.guards import is_from_a_handler, reason
from tensorlens.records.tensors import SourceLine

_SPAN = 1 << 28
"""How many numbers of lines each framework has for itself; eight of them fit into 32 bits."""

Lines = Mapping[int, tuple[int, int]]


def follow(adapters: Sequence[Adapter]) -> Steps:
    """Follow a loop's steps from now on, in all frameworks that can.

    Raises:
        TensorlensError: none of them can; the text says why.
    """
    with ExitStack() as stack:

        def begin(adapter: Adapter) -> Steps:
            steps = adapter.follow()
            stack.callback(steps.close)
            return steps

        answers, failed = ask(adapters, begin)
        stack.pop_all()
    notes = [f"{name} is not followed: {text}" for name, text in failed.items()]
    notes += left_out()
    if len(answers) == 1 and not notes:
        return answers[0][1]
    return MergedSteps([(adapter.name, steps) for adapter, steps in answers], notes)


def pinned(adapters: Sequence[Adapter]) -> int:
    """Return the bytes of page-locked memory that all handed out, as far as they tell."""
    known = [nbytes for each in adapters if (nbytes := each.pinned()) >= 0]
    return sum(known) if known else UNKNOWN


class MergedSteps:
    """Follows the steps of a loop in each of several frameworks.

    Args:
        parts: each framework's name and what follows it, whose numbers of lines are below
            2 ** 28 in amount.
        extra: lines for the report.
    """

    def __init__(self, parts: Sequence[tuple[str, Steps]], extra: Sequence[str]) -> None:
        self._names = tuple(name for name, _ in parts)
        self._parts = tuple(part for _, part in parts)
        self._extra = [*extra]
        self._counted = [array("Q") for _ in parts]
        """Addresses of the blocks that each framework counted when they were last asked for."""

    def begin(self) -> None:
        """Say that the next step begins."""
        for part in self._parts:
            part.begin()

    def merge(self) -> None:
        """Count each two steps as one from now on, those before too."""
        for part in self._parts:
            part.merge()

    def figures(self) -> StepFigures:
        """Return what is allocated now."""
        figures = [part.figures() for part in self._parts]
        lines: dict[int, tuple[int, int]] = {}
        for number, each in enumerate(figures):
            lines.update(_numbered(number, each.lines))
        return StepFigures(
            allocated=_summed([each.allocated for each in figures]),
            reserved=_summed([each.reserved for each in figures], once="cpu"),
            lines=lines,
            asked=self._asked(figures),
        )

    def _asked(self, figures: Sequence[StepFigures]) -> Lines | None:
        """Return what accelerators were asked for; None unless all that use any looked."""
        found: dict[int, tuple[int, int]] = {}
        has_looked = False
        for number, (part, each) in enumerate(zip(self._parts, figures, strict=True)):
            if each.asked is not None:
                has_looked = True
                found.update(_numbered(number, each.asked))
            elif any(part.device(birth) != "cpu" for birth in each.lines):
                return None
        return found if has_looked else None

    def left(self, since: int) -> LeftBlocks | None:
        """Return the blocks of the steps from ``since`` on that live; None if nobody counts."""
        found: LeftBlocks | None = None
        for number, part in enumerate(self._parts):
            left = part.left(since)
            self._counted[number] = array("Q") if left is None else left.address
            if left is not None:
                found = found or LeftBlocks()
                births = array("i", (_outer(number, birth) for birth in left.birth))
                found.extend(replace(left, birth=births))
        return found

    def line(self, birth: int) -> SourceLine | None:
        """Return the line of a number in the figures; None for what is not known."""
        number, own = _inner(birth)
        return self._parts[number].line(own) if number < len(self._parts) else None

    def device(self, birth: int) -> str:
        """Return the device of the blocks with a number in the figures."""
        number, own = _inner(birth)
        return self._parts[number].device(own) if number < len(self._parts) else "cpu"

    def notes(self) -> Sequence[str]:
        """Return lines for the report on what could not be followed."""
        own = (note for part in self._parts for note in part.notes())
        return [*dict.fromkeys([*own, *self._extra])]

    def holdings(self, addresses: Sequence[int]) -> Holdings:
        """Look for what keeps the blocks at these addresses alive, in the framework of each."""
        part_of = {address: at for at, own in enumerate(self._counted) for address in own}
        survivors: dict[int, Survivor] = {}
        parts: list[Holdings] = []
        for at, part in enumerate(self._parts):
            mine = [address for address in addresses if part_of.get(address, 0) == at]
            try:
                if mine:
                    held = part.holdings(mine)
                    survivors.update(zip(mine, held.survivors, strict=True))
                    parts.append(held)
            except Exception as error:
                if is_from_a_handler(error) or len(mine) == len(addresses):
                    raise
                why = f"who holds its tensors could not be found: {reason(error)}"
                self._extra.append(f"{self._names[at]}: {why}")
        known = [survivors.get(address) or Survivor(address, 0) for address in addresses]
        return MergedHoldings(parts, known)

    def close(self) -> None:
        """Follow no longer."""
        for part in self._parts:
            part.close()


class MergedHoldings:
    """Results of one look in each of several frameworks.

    Args:
        parts: what each framework knows of its own blocks.
        survivors: one for each address, in order.
    """

    def __init__(self, parts: Sequence[Holdings], survivors: list[Survivor]) -> None:
        self._parts = tuple(parts)
        self.survivors = survivors
        self._part_of = {
            id(item): number
            for number, part in enumerate(parts)
            for each in part.survivors
            for item in (*each.tensors, *(holder.item for holder in each.holders))
        }
        """Object to whose it is, by ``id()``; the survivors keep it alive."""

    def root(self, item: Any) -> GraphRoot:
        """Return what is known of one of the survivors' holders.

        Raises:
            KeyError: it is none of them.
        """
        return self._parts[self._part_of[id(item)]].root(item)

    def below(self, roots: Sequence[Any], group: Sequence[Any] = ()) -> Retained:
        """Return what is kept alive because of ``roots`` alone, beside themselves.

        Raises:
            KeyError: one of them is none of the survivors' tensors and holders.
        """
        found = [
            part.below(mine, self._of(number, group))
            for number, part in enumerate(self._parts)
            if (mine := self._of(number, roots))
        ]
        references = (each.references for each in found if each.references)
        return Retained(
            sum(each.bytes for each in found),
            sum(each.tensors for each in found),
            next(references, ()),
            tuple(block for each in found for block in each.blocks),
            sum(each.nodes for each in found),
        )

    def _of(self, number: int, items: Sequence[Any]) -> list[Any]:
        # not by an iterator: it would be found to hold them
        return [item for item in items if self._part_of[id(item)] == number]


def _outer(part: int, birth: int) -> int:
    """Return the number of a part's line among those of all."""
    return birth + part * _SPAN if birth >= 0 else birth - part * _SPAN


def _inner(birth: int) -> tuple[int, int]:
    """Return whose line a number is, and the number it has there."""
    if birth >= 0:
        return divmod(birth, _SPAN)
    part, below = divmod(-1 - birth, _SPAN)
    return part, -1 - below


def _numbered(part: int, lines: Lines) -> Iterator[tuple[int, tuple[int, int]]]:
    return ((_outer(part, birth), figures) for birth, figures in lines.items())


def _summed(parts: Sequence[Mapping[str, int]], once: str = "") -> dict[str, int]:
    """Return sums by device, unknown where one is; of the device ``once`` the first known."""
    found: dict[str, int] = {}
    for part in parts:
        for device, nbytes in part.items():
            known = found.get(device)
            if known is None or (device == once and known < 0):
                found[device] = nbytes
            elif device != once:
                found[device] = known + nbytes if known >= 0 <= nbytes else UNKNOWN
    return found
