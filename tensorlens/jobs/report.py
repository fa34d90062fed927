"""The job report: one figure of each rank, how far they spread, and what the odd one holds.

Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any, ClassVar

from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run


@dataclass(frozen=True, slots=True)
class RankFigures:
    """What one rank's record says of the device that it works on."""

    rank: int
    file: str
    """Its file, or what else the record came by."""
    device: str
    """The accelerator that holds most; without one the host."""
    figures: Mapping[str, int]
    """Name of a figure (``peak``, ``allocated``, ``reserved``, ``bytes per step``) to bytes."""
    stage: int | None = None
    """Its stage of a pipeline, in order of first ranks: ranks of other stages hold none of its
    parameters. None where there is one stage."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the ranks of a stage, or of a job without stages."""

    figure: str
    least: int
    least_rank: int
    median: int
    """Of an even number of ranks the lower one, so that it is a rank's."""
    most: int
    most_rank: int
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class ItemDifference:
    """A tensor, line or leak that takes more or less on one rank than on another.

    Tensors whose names differ in numbers of layers alone are one, where each takes as much.
    """

    name: str
    """``layers[0-11].mlp.weight`` of several."""
    nbytes: int
    """On the rank that stands out."""
    other_nbytes: int
    count: int = 1
    """How many tensors it stands for."""
    line: str = ""
    """The line that made it; empty where none is known."""

    @property
    def difference(self) -> int:
        """How much more it takes there."""
        return self.nbytes - self.other_nbytes


@dataclass(frozen=True, slots=True)
class OddRank:
    """The rank that is furthest from its stage's median, beside the one that is nearest to it."""

    rank: int
    other_rank: int
    figure: str
    difference: int
    """How much more it has than the median; negative for less."""
    items: tuple[ItemDifference, ...]
    """What makes the difference, the largest first."""
    rest: int = 0
    """The sum of the differences that are not listed."""
    rest_count: int = 0


@dataclass(frozen=True, slots=True)
class JobReport(Document):
    """The ranks of one job; prints itself as text. As a table: one row per rank."""

    SCHEMA: ClassVar[str] = "tensorlens.job"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "job report"
    PRESENTER: ClassVar[str] = "tensorlens.jobs.present"

    kind: str
    """The records that it was made of: ``recording``, ``snapshot``, ``line report``, ..."""
    item: str
    """What :attr:`OddRank.items` are: ``tensor``, ``line`` or ``leak``."""
    ranks: tuple[RankFigures, ...]
    """In order."""
    world_size: int | None
    """How many ranks the job had; None where no record says so."""
    missing: tuple[int, ...]
    """Ranks that there is no record of."""
    odd: OddRank | None
    """None where all ranks have the same."""
    notes: tuple[str, ...] = ()
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def spreads(self) -> tuple[Spread, ...]:
        """Each figure over the ranks that have it, stage by stage."""
        names = dict.fromkeys((each.stage, name) for each in self.ranks for name in each.figures)
        return tuple(self._spread(*each) for each in names)

    def _fields(self) -> dict[str, Any]:
        return {**asdict(self), "spreads": [asdict(each) for each in self.spreads]}

    def _spread(self, stage: int | None, figure: str) -> Spread:
        ranks = (each for each in self.ranks if each.stage == stage and figure in each.figures)
        found = [(each.figures[figure], each.rank) for each in ranks]
        (least, least_rank), (most, most_rank) = min(found), max(found, key=lambda pair: pair[0])
        middle = median_low(value for value, _ in found)
        return Spread(figure, least, least_rank, middle, most, most_rank, stage)
