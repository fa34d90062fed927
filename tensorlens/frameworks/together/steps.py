"""The steps of one loop, followed in several frameworks at once."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from tensorlens.frameworks.base import UNKNOWN, Left, StepFigures, Steps
from tensorlens.frameworks.survivors import Holdings
from tensorlens.frameworks.together.holdings import JoinedHoldings
from tensorlens.records.tensors import SourceLine
from tensorlens.signals import is_from_a_handler

_SPAN = 1 << 28
"""How many numbers of lines each framework has for itself; eight of them fit into 32 bits."""

Lines = Mapping[int, tuple[int, int]]


class JoinedSteps:
    """Follows the steps of a loop in each of several frameworks.

    Args:
        parts: each framework's name and what follows it, whose numbers of lines are below
            2 ** 28 in amount.
        extra: lines for the report.
    """

    def __init__(self, parts: Sequence[tuple[str, Steps]], extra: Sequence[str] = ()) -> None:
        self._names = tuple(name for name, _ in parts)
        self._parts = tuple(part for _, part in parts)
        self._extra = [*extra]

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

    def left(self, since: int) -> Left | None:
        """Return the blocks of the steps from ``since`` on that live; None if nobody counts."""
        found: Left | None = None
        for number, part in enumerate(self._parts):
            left = part.left(since)
            if left is None:
                continue
            if found is None:
                found = Left(array("Q"), array("q"), array("i"), array("i"), array("q"))
            found.address.extend(left.address)
            found.size.extend(left.size)
            found.taken.extend(left.taken)
            found.birth.extend(_outer(number, birth) for birth in left.birth)
            found.step.extend(left.step)
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
        """Look once in each framework for what keeps the blocks at these addresses alive."""
        found: list[Holdings] = []
        failed: list[str] = []
        for name, part in zip(self._names, self._parts, strict=True):
            try:
                found.append(part.holdings(addresses))
            except Exception as error:
                if is_from_a_handler(error) or (name == self._names[-1] and not found):
                    raise
                text = f"{type(error).__name__}: {error}"
                failed.append(f"{name}: who holds its tensors could not be found: {text}")
        self._extra += failed
        return JoinedHoldings(found)

    def close(self) -> None:
        """Follow no longer."""
        for part in self._parts:
            part.close()


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
