"""The result of ``suggest()``: changes that would save most at the peak.

Sizes are bytes; None is unknown, never 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal

from tensorlens.errors import UsageError
from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run

Kind = Literal["checkpoint", "bf16", "optimizer", "set_to_none", "zero_grad", "kept", "queue"]
"""Blocks computed again in backward, autocast, another optimizer, gradients freed and not zeroed,
gradients freed before forward, a tensor freed after its last use, a smaller queue of batches."""

FREE: tuple[Kind, ...] = ("set_to_none", "zero_grad", "kept")
"""Kinds that cost neither time nor accuracy."""


class Method(StrEnum):
    """How a prediction was made."""

    REPLAYED = "replayed"
    """From the events of the recording."""
    SIMULATED = "simulated"
    """By running the step with the change on tensors without data."""
    COUNTED = "counted"
    """By counting the batches that loaders ask for."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change by itself; savings of several changes do not add up."""

    kind: Kind
    change: str
    """In a few words: ``checkpoint 6 blocks``."""
    what: str
    """The blocks, the variable or the optimizer to change."""
    code: str
    """Code to write."""
    predicted_peak: int = 0
    """Peak with the change, of the allocated bytes or of :attr:`memory`."""
    predicted_saving: int = 0
    """Bytes by which the peak falls, wherever the new one is."""
    how: Method = Method.REPLAYED
    cost: str = ""
    """Its cost, ``none`` if it is free; empty if unknown."""
    settings: tuple[str, ...] = ()
    """The option of :func:`tensorlens.compare` that makes it: ``optimizer=sgd``. Empty if only the
    program's own code can."""
    memory: str = ""
    """Place of the bytes, if they are not part of the peak: ``shared memory``."""
    before: int | None = None
    """Most bytes of that memory without the change; None if they are part of the peak."""
    measured_peak: int | None = None
    measured_saving: int | None = None
    measured_time: float | None = None
    """Ratio of the time per step to that of the unchanged program; None after one run, or if lost
    in noise."""
    measured_noise: float | None = None
    """Half the width of the ratio's 95 % interval, also if the ratio is lost in it."""
    missing: str = ""
    """Reason why nothing is measured."""

    @property
    def is_free(self) -> bool:
        """Whether it costs neither time nor accuracy."""
        return self.kind in FREE

    @property
    def option(self) -> dict[str, Any] | None:
        """The option for :func:`tensorlens.compare`; None if only the program's code can."""
        if not self.settings:
            return None
        from tensorlens.planning.compare.options import name_and_value

        return dict(name_and_value(each, each) for each in self.settings)

    @property
    def off(self) -> float | None:
        """Relative error of the predicted saving; None if unknown."""
        if not self.measured_saving:
            return None
        return self.predicted_saving / self.measured_saving - 1


@dataclass(frozen=True, slots=True)
class Suggestions(Document):
    """The changes that would save most, and all free ones, the largest saving first.

    As a table: one row per change.
    """

    SCHEMA: ClassVar[str] = "tensorlens.suggestions"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "list of suggestions"
    PRESENTER: ClassVar[str] = "tensorlens.planning.suggest.present"

    suggestions: tuple[Suggestion, ...]
    device: str
    peak: int
    """Most bytes allocated by the unchanged program."""
    moment: str
    """Moment of the peak: ``in backward, step 2``."""
    program: str = ""
    verified: bool = False
    measured_peak: int | None = None
    """Peak of the unchanged program, if suggestions were measured."""
    others: tuple[str, ...] = ()
    """Further changes, which would save less."""
    notes: tuple[str, ...] = ()
    line: str = ""
    """The line that has most of the peak, with its bytes and source."""
    source: str = ""
    """Source of that line, with which ``line`` ends."""
    tensor: str = ""
    """The tensors that have most of the peak, with their bytes."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.suggestions)

    def __iter__(self) -> Iterator[Suggestion]:
        return iter(self.suggestions)

    def __getitem__(self, key: int | str) -> Suggestion:
        if isinstance(key, int):
            return self.suggestions[key]
        for each in self.suggestions:
            if each.kind == key:
                return each
        known = ", ".join(dict.fromkeys(each.kind for each in self.suggestions)) or "none"
        raise UsageError(f"there is no suggestion of the kind {key!r}: there is {known}")

    def without_source(self) -> Suggestions:
        """Return them without the source of the largest line: themselves if there is none."""
        if not self.source:
            return self
        return replace(self, line=self.line.removesuffix(f": {self.source}"), source="")
