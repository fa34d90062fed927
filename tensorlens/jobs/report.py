"""The job report: figures of each rank, their spread, and the rank that stands out.

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
    """Figures of one rank, of the device that it works on."""

    rank: int
    file: str
    """File of the record, or another name of its origin."""
    device: str
    """The accelerator with most bytes, or the host if there is none."""
    figures: Mapping[str, int]
    """Name of a figure (``peak``, ``allocated``, ``reserved``, ``bytes per step``) to bytes."""
    stage: int | None = None
    """Pipeline stage, numbered in the order of first ranks: ranks of other stages share none of its
    parameters. None if there is one stage."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the ranks of a stage, or of a job without stages."""

    figure: str
    least: int
    least_rank: int
    median: int
    """The lower one of two middle figures, so that it is the figure of a rank."""
    most: int
    most_rank: int
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class ItemDifference:
    """A tensor, line or leak with different bytes on two ranks.

    Tensors of the same difference whose names differ only in numbers of layers are one item.
    """

    name: str
    """Name; ``layers[0-11].mlp.weight`` if of several tensors."""
    nbytes: int
    """Bytes on the rank that stands out."""
    other_nbytes: int
    """Bytes on the other rank."""
    count: int = 1
    """Number of tensors in it."""
    line: str = ""
    """The line that made it; empty if unknown."""

    @property
    def difference(self) -> int:
        """Bytes that the rank that stands out has more; negative if fewer."""
        return self.nbytes - self.other_nbytes


@dataclass(frozen=True, slots=True)
class OddRank:
    """The rank furthest from its stage's median, compared with the rank nearest to it."""

    rank: int
    other_rank: int
    figure: str
    difference: int
    """Bytes above the median; negative below it."""
    items: tuple[ItemDifference, ...]
    """Parts of the difference, the largest first."""
    rest: int = 0
    """Sum of the differences that are not listed."""
    rest_count: int = 0


@dataclass(frozen=True, slots=True)
class JobReport(Document):
    """The ranks of one job; as a table, one row per rank."""

    SCHEMA: ClassVar[str] = "tensorlens.job"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "job report"
    PRESENTER: ClassVar[str] = "tensorlens.jobs.present"

    kind: str
    """Kind of the records: ``recording``, ``snapshot``, ``line report``, ..."""
    item: str
    """Kind of :attr:`OddRank.items`: ``tensor``, ``line`` or ``leak``."""
    ranks: tuple[RankFigures, ...]
    """In order."""
    world_size: int | None
    """Number of ranks of the job; None if no record has it."""
    missing: tuple[int, ...]
    """Ranks without a record."""
    odd: OddRank | None
    """None if all ranks are equal."""
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
