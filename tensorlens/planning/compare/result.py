"""Results of ``compare()``: the figures of each option, and the best options.

Sizes are bytes; None is unknown, never 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from tensorlens.errors import UsageError
from tensorlens.planning.trace import Framework
from tensorlens.records.documents import Document
from tensorlens.records.run import Run, current_run
from tensorlens.units import format_bytes

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Two-sided 95 % points of Student's t with 1 to 20 degrees of freedom."""
_NORMAL = 1.96

_MAX_NOISE = 0.25
"""Least relative noise that makes a ratio unknown."""
_MIN_DIFFERENCE = 0.01
"""Relative difference up to which times count as equal, however certain it is."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two times."""

    point: float
    """Geometric mean of the repeats' ratios."""
    low: float | None
    """Lower end of its 95 % interval; None with one repeat."""
    high: float | None
    """Upper end."""

    @property
    def verdict(self) -> str:
        """``faster``, ``slower``, ``no difference``, or ``unknown`` with one repeat."""
        if self.low is None or self.high is None:
            return "unknown"
        if self.high < 1 and self.point < 1 - _MIN_DIFFERENCE:
            return "faster"
        if self.low > 1 and self.point > 1 + _MIN_DIFFERENCE:
            return "slower"
        return "no difference"

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def noise(self) -> float | None:
        """Half the width of the interval, relative to the ratio."""
        return None if self.half_width is None else self.half_width / self.point

    @property
    def is_known(self) -> bool:
        """Whether there are several repeats and the relative noise is below a quarter."""
        return self.noise is not None and self.noise < _MAX_NOISE


def ratio(times: Sequence[float], base: Sequence[float]) -> Ratio | None:
    """Return the ratio of times to base times measured in turn with them; None if there are none.

    Each time is divided by the base time of its turn, so that a slow phase of the machine affects
    both. The interval is Student's, over the logarithms.
    """
    pairs = [(one, other) for one, other in zip(times, base, strict=False) if one > 0 < other]
    if not pairs:
        return None
    if times == base:
        return Ratio(1.0, 1.0, 1.0)
    logarithms = [math.log(one / other) for one, other in pairs]
    middle = statistics.fmean(logarithms)
    count = len(logarithms)
    if count < 2:
        return Ratio(math.exp(middle), None, None)
    point_t = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
    half = point_t * statistics.stdev(logarithms) / math.sqrt(count)
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))


def spread(times: Sequence[float]) -> float | None:
    """Return the range of repeats, relative to their median; None with fewer than two."""
    if len(times) < 2:
        return None
    return (max(times) - min(times)) / statistics.median(times)


class Status(StrEnum):
    """Whether an option ran, and if not, why."""

    RAN = "ran"
    CANNOT = "cannot"
    """It cannot work here."""
    FAILED = "failed"
    """The program failed."""
    OUT_OF_MEMORY = "out of memory"


WITHIN = 1.10
"""Largest ratio to the baseline's time that counts as within 10 % of the speed."""

SAME_LOSS = 1e-5
"""Largest relative difference of losses that count as the same."""

ONE_RUN = "one run; use repeats=3 (--repeats 3)"
"""Why a time is no result."""
_NOISE = "times are lost in noise; use more steps: steps=..., --steps"

LEAST, BATCH, QUICK = "least memory", "largest batch", "least memory within 10 % of the speed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one option, or the reason why there are none."""

    name: str
    settings: tuple[str, ...] = ()
    """Its settings: ``optimizer=adam``."""
    status: Status = Status.RAN
    why: str = ""
    """Reason why there are no figures; empty if it ran."""
    details: str = ""
    """The program's traceback and the end of its output."""
    peak_allocated: int | None = None
    """Peak of set-up and all steps, in all repeats."""
    peak_reserved: int | None = None
    """Most that the allocator held; measured on the CPU, the peak of the resident set."""
    setup_allocated: int | None = None
    """Bytes when the first step begins."""
    least_capacity: int | None = None
    """Least memory that is enough."""
    largest_batch: int | None = None
    """Largest batch that fits into the capacity; 0: not even the smallest."""
    beyond: str = ""
    """Result of the next larger batch."""
    held_ahead: int | None = None
    """Bytes in the full queues of torch's DataLoaders with workers: host memory that is not part of
    the peak. None if there are none."""
    peaks: tuple[int, ...] = ()
    """Peak allocated of each repeat."""
    step_peaks: tuple[int, ...] = ()
    """Peak allocated of set-up and one step, the median of each repeat; known for TensorFlow on a
    CPU, else empty."""
    seconds: tuple[float, ...] = ()
    """Time of one step, the median of each repeat."""
    losses: tuple[float | None, ...] = ()
    """Loss of each step in the first repeat; None if the loss is not finite."""
    notes: tuple[str, ...] = ()
    at_peak: dict[str, str] = field(default_factory=dict)
    """Moment of the peak, and what has most of it: ``peak``, ``line``, ``tensor``; of a library's
    model its ``model line``. Measured, one more step is recorded for this, after the first
    repeat."""
    missing: dict[str, str] = field(default_factory=dict)
    """Figure to the reason why it is None or empty."""

    @property
    def ran(self) -> bool:
        """Whether it has figures."""
        return self.status == Status.RAN


@dataclass(frozen=True, slots=True)
class LossCheck:
    """Relative differences of an option's losses to the baseline's."""

    first: float
    """Difference at the first step, before any update by an optimizer; infinite if a loss is not
    finite."""
    largest: float
    """Largest difference of all steps."""

    @property
    def verdict(self) -> str:
        """``same``, ``same at first`` or ``differs``."""
        if self.largest <= SAME_LOSS:
            return "same"
        return "same at first" if self.first <= SAME_LOSS else "differs"


@dataclass(frozen=True, slots=True)
class Winner:
    """The answer to one question."""

    question: str
    names: tuple[str, ...]
    """The best option, or several equal ones; empty if unknown."""
    why: str
    """The figure that decides, or why it is unknown."""


@dataclass(frozen=True, slots=True)
class Comparison(Document):
    """The same step under named options; prints itself, in a notebook as HTML.

    As a table: one row per option.
    """

    SCHEMA: ClassVar[str] = "tensorlens.comparison"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "comparison"
    PRESENTER: ClassVar[str] = "tensorlens.planning.compare.present"
    SHOWS_SOURCE: ClassVar[bool] = False

    outcomes: tuple[Outcome, ...]
    baseline: str
    device: str
    provenance: str
    """``measured`` or ``estimated``."""
    program: str = ""
    framework: Framework = "torch"
    card: str = ""
    """Card of an estimate; empty if measured."""
    capacity: int | None = None
    """Bytes that the largest batch must fit into."""
    batch: int | None = None
    """Argument of ``make_step``; None: it had no argument."""
    steps: int = 0
    repeats: int = 1
    notes: tuple[str, ...] = ()
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    def without_source(self) -> Comparison:
        """Return it without the tracebacks of programs that failed: itself if none did."""
        if not any(each.details for each in self.outcomes):
            return self
        return replace(self, outcomes=tuple(replace(each, details="") for each in self.outcomes))

    def _fields(self) -> dict[str, Any]:
        return {**asdict(self), "winners": [asdict(each) for each in self.winners]}

    def __getitem__(self, name: str) -> Outcome:
        for outcome in self.outcomes:
            if outcome.name == name:
                return outcome
        known = ", ".join(repr(each.name) for each in self.outcomes)
        raise UsageError(f"there is no option {name!r}: there are {known}")

    def saved(self, name: str) -> int | None:
        """Return the bytes by which an option's peak is below the baseline's."""
        here, before = self[name].peak_allocated, self[self.baseline].peak_allocated
        return None if here is None or before is None else before - here

    def time_ratio(self, name: str, to: str | None = None) -> Ratio | None:
        """Return the ratio of the time per step to the baseline's, or to that of another option.

        None if one of them has no times.
        """
        base = self[self.baseline if to is None else to]
        return ratio(self[name].seconds, base.seconds)

    def loss_check(self, name: str) -> LossCheck | None:
        """Compare an option's losses with the baseline's; None if one of them has none."""
        here, before = self[name].losses, self[self.baseline].losses
        if not here or not before:
            return None
        if name == self.baseline:
            return LossCheck(0.0, 0.0)
        pairs = zip(here, before, strict=False)
        differences = [_relative_difference(one, other) for one, other in pairs]
        return LossCheck(differences[0], max(differences))

    @property
    def winners(self) -> tuple[Winner, ...]:
        """The answer to each question."""
        known = self._with_peaks()
        if len(known) == 1 < len(self.outcomes):
            why = f"{known[0].name!r} alone has figures"
            return (Winner(LEAST, (), why), self._largest(), Winner(QUICK, (), why))
        return (self._least(LEAST, known), self._largest(), self._quick())

    @property
    def pareto(self) -> tuple[str, ...]:
        """The options such that no other takes less memory and no more time.

        Options with unknown times, from one run or lost in noise, are left out.
        """
        ratios = ((each, self.time_ratio(each.name)) for each in self._with_peaks())
        timed = [each for each, found in ratios if found is not None and found.is_known]
        if self.repeats < 2 or len(timed) < 2:
            return ()
        return tuple(
            each.name
            for each in timed
            if not any(self._beats(other, each) for other in timed if other is not each)
        )

    def _beats(self, one: Outcome, other: Outcome) -> bool:
        assert one.peak_allocated is not None and other.peak_allocated is not None
        if _tied(one, other):
            found = self.time_ratio(one.name, other.name)
            return found is not None and found.verdict == "faster"
        if one.peak_allocated > other.peak_allocated:
            return False
        found = self.time_ratio(other.name, one.name)
        return found is not None and found.verdict != "faster"

    def _with_peaks(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.ran and each.peak_allocated is not None]

    def _least(self, question: str, among: list[Outcome]) -> Winner:
        if not among:
            return Winner(question, (), "no option has figures")
        best = min(among, key=lambda each: each.peak_allocated or 0)
        names = tuple(each.name for each in among if _tied(each, best))
        return Winner(question, names, self._memory_words(best, names))

    def _memory_words(self, best: Outcome, names: Iterable[str]) -> str:
        assert best.peak_allocated is not None
        peak = format_bytes(best.peak_allocated)
        if self.baseline in names:
            return f"no difference to the baseline: {peak}"
        before = self[self.baseline].peak_allocated
        if not before:
            return peak
        return f"{peak}, {100 * (1 - best.peak_allocated / before):.1f} % less than the baseline"

    def _largest(self) -> Winner:
        known = [each for each in self._with_peaks() if each.largest_batch is not None]
        if not known:
            asks = "give a capacity, and a make_step(batch)"
            return Winner(BATCH, (), asks if self.capacity is None else "not known")
        most = max(each.largest_batch or 0 for each in known)
        names = tuple(each.name for each in known if each.largest_batch == most)
        if not most:
            return Winner(BATCH, (), "not even the smallest batch fits under any option")
        before = self[self.baseline].largest_batch
        if before == most:
            return Winner(BATCH, names, f"no difference to the baseline: {most:,}")
        ratio_text = f", {most / before:.2f} times the baseline's" if before else ""
        return Winner(BATCH, names, f"{most:,}{ratio_text}")

    def _quick(self) -> Winner:
        ratios = {each.name: self.time_ratio(each.name) for each in self._with_peaks()}
        if not any(ratios.values()):
            why = "an estimate has no times" if self.provenance == "estimated" else "no times known"
            return Winner(QUICK, (), why)
        # a ratio with more noise than 10 % cannot be said to be within 10 %
        known = {
            name: each
            for name, each in ratios.items()
            if each is not None and each.noise is not None and each.noise <= WITHIN - 1
        }
        if self.repeats < 2 or not known.keys() - {self.baseline}:
            why = ONE_RUN if self.repeats < 2 else _NOISE
            return Winner(QUICK, (), why)
        names = {name for name, each in known.items() if each.point <= WITHIN}
        return self._least(QUICK, [each for each in self._with_peaks() if each.name in names])

    def __repr__(self) -> str:
        return f"<Comparison of {len(self.outcomes)} options, {self.provenance} on {self.device}>"


def _relative_difference(one: float | None, other: float | None) -> float:
    if one is None or other is None:
        return math.inf
    whole = abs(other)
    return abs(one - other) / whole if whole else (0.0 if one == other else math.inf)


def _tied(one: Outcome, other: Outcome) -> bool:
    """Tell whether the ranges of two options' peaks overlap."""
    mine, theirs = one.peaks or (one.peak_allocated,), other.peaks or (other.peak_allocated,)
    low, high = min(x or 0 for x in mine), max(x or 0 for x in mine)
    return low <= max(x or 0 for x in theirs) and min(x or 0 for x in theirs) <= high
