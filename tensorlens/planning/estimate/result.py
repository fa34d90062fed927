"""The result of an estimate: peaks, their bounds, and what they are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from tensorlens.errors import FileFormatError, UsageError
from tensorlens.planning.card import Card
from tensorlens.planning.trace import Caution, Formula, Framework
from tensorlens.recording import tlens
from tensorlens.recording.moments import Moment
from tensorlens.recording.recordings import Recording
from tensorlens.records.documents import Document, restored
from tensorlens.records.run import Run, current_run
from tensorlens.records.tensors import SourceLine
from tensorlens.render import text_of_blocks
from tensorlens.render.shown import permitted
from tensorlens.units import parse_bytes

REMAINDER = "remainder"
"""Beside the roles of blocks: what the allocator sets aside with blocks and cannot split off."""

CONTEXT = "CUDA context"
"""The term that :attr:`Estimate.upper` leaves out."""

PLACEMENT = (0.1, 0.2)
"""Measured trainings take at most a tenth less and a fifth more (``docs/estimate.md``)."""


class Verdict(StrEnum):
    """Whether it fits: within all bounds, at the likeliest figure alone, or not even so."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "does not fit"


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes that are known within bounds."""

    low: int
    point: int
    """The likeliest."""
    high: int

    @classmethod
    def exactly(cls, nbytes: int) -> Range:
        """Return what is known to the byte."""
        return cls(nbytes, nbytes, nbytes)

    @property
    def is_exact(self) -> bool:
        """Whether the bounds are the same."""
        return self.low == self.high

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.point + other.point, self.high + other.high)


@dataclass(frozen=True, slots=True)
class EstimateTerm:
    """Memory that no tensor of the program is."""

    name: str
    """``cuBLAS workspace``, ``CUDA context``."""
    nbytes: Range
    """At the peak where it is the framework's, else as long as the process lives."""
    why: str
    """One line: the rule and where it comes from."""
    apart: bool = False
    """Whether it is outside of what the framework's allocator holds."""


@dataclass(frozen=True, slots=True)
class EstimatedStep:
    """One step on one device, bytes as the framework's allocator counts them."""

    name: str
    """``setup``, ``step 1``, ``step 2``."""
    peak_allocated: int
    peak_reserved: int
    allocated: int
    """At the step's end."""
    reserved: int


@dataclass(frozen=True, slots=True, repr=False)
class Fit:
    """Whether a capacity is enough: true where the likeliest figure fits, and callable for any."""

    capacity: int | None
    """Bytes of the card, context included; None where none was asked for, of host memory."""
    needed: Range
    """The least capacity that works, what lies outside of the framework's memory included."""
    is_bounded: bool = True
    """Whether ``needed`` has bounds; else only its likeliest figure counts."""

    def __call__(self, capacity: int | str | None = None) -> Fit:
        """Return whether it fits into so many bytes, or a text such as ``24 GiB``.

        Raises:
            UsageError: there is no capacity, or it is no size.
        """
        wanted = self._known() if capacity is None else parse_bytes(capacity)
        return replace(self, capacity=wanted)

    @property
    def verdict(self) -> Verdict:
        """``fits`` if even the upper bound does, ``does not fit`` if the likeliest does not.

        Raises:
            UsageError: there is no capacity.
        """
        capacity = self._known()
        if self.is_bounded and self.needed.high <= capacity:
            return Verdict.FITS
        return Verdict.TIGHT if self.needed.point <= capacity else Verdict.TOO_LARGE

    def _known(self) -> int:
        if self.capacity is None:
            raise UsageError(
                'host memory has no fixed size here: fits("24 GiB") answers for a capacity'
            )
        return self.capacity

    def __bool__(self) -> bool:
        return self.verdict != Verdict.TOO_LARGE

    def __repr__(self) -> str:
        return "<no capacity was asked>" if self.capacity is None else f"<{self.verdict}>"


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch that fits, of which an estimate is."""

    batch: int
    """0 where not even the smallest that was tried fits."""
    capacity: int
    """Capacity, context included."""
    next_batch: int | None = None
    """One that does not fit, the smallest that is known; None where all that were tried fit."""
    next_needed: int | None = None
    """Needs of that one: the likeliest figure, or the upper bound."""
    is_limit: bool = False
    """Whether it is the largest that was to be tried."""
    is_uneven: bool = False
    """Whether a batch was tried that needs less than a smaller one."""
    is_sure: bool = False
    """Whether upper bounds were compared with the capacity."""


@dataclass(frozen=True)
class Estimate(Document):
    """Needs of a program's steps on one device; prints itself, in a notebook as HTML.

    All sizes are bytes. What is outside of the framework's memory is only in :attr:`apart`,
    :attr:`upper`, :attr:`needed` and :attr:`fits`.
    """

    SCHEMA: ClassVar[str] = "tensorlens.estimate"
    VERSION: ClassVar[int] = 1
    KIND: ClassVar[str] = "estimate"
    PRESENTER: ClassVar[str] = "tensorlens.planning.estimate.present"
    INDENT: ClassVar[int | None] = None

    device: str
    card: Card | None
    """None for host memory."""
    allocated: Range
    """Peak over all steps, as ``torch.cuda.max_memory_allocated()`` will tell, or ``peak`` of
    ``tf.config.experimental.get_memory_info``."""
    reserved: Range
    """Peak over all steps, as ``torch.cuda.max_memory_reserved()`` will tell."""
    least_capacity: Range
    """The minimum that fits: cached segments go back when there is no room."""
    steps: Sequence[EstimatedStep]
    terms: Sequence[EstimateTerm]
    recording: Recording
    """The steps as :func:`tensorlens.record` would have seen them."""
    peak_row: int
    """The event of the recording after which most was allocated."""
    capacity: int | None = None
    """Capacity that was asked for."""
    batch: int | None = None
    """The first dimension that most inputs have; None where there is none."""
    settings: str = ""
    """``PYTORCH_CUDA_ALLOC_CONF`` that was simulated."""
    warnings: Sequence[Caution] = ()
    """Lines that were not run as a real device would run them."""
    unsimulated: str | None = None
    """Part of the program that no simulator knows: the figures have no bounds; else None."""
    versions: Mapping[str, str] | None = None
    program: str = ""
    """Program: ``train.py:make_step``."""
    framework: Framework = "torch"
    """Whose allocator it is of."""
    formulas: Sequence[Formula] = ()
    """Results of rules of thumb, and why they are off."""
    largest: LargestBatch | None = None
    """Of :func:`tensorlens.max_batch`, where the estimate is of its answer."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def peak_allocated(self) -> int:
        """The likeliest peak of what is allocated."""
        return self.allocated.point

    @property
    def peak_reserved(self) -> int:
        """The likeliest peak of what is reserved."""
        return self.reserved.point

    @property
    def apart(self) -> Range:
        """Memory outside of the framework: context, loaded kernels."""
        return sum((term.nbytes for term in self.terms if term.apart), Range(0, 0, 0))

    @property
    def taken(self) -> Range:
        """Memory of the process as the driver shows it, its context left out.

        That is what is reserved, and the kernels that are loaded as they are used. How the
        allocator's segments come to lie depends on every request; the bounds have room for
        :data:`PLACEMENT` of what is reserved, less or more than what was simulated, but in less
        than :attr:`least_capacity` the requests have no room.
        """
        loaded = (term.nbytes for term in self.terms if term.apart and term.name != CONTEXT)
        kernels = sum(loaded, Range(0, 0, 0))
        if self.card is None:
            return self.reserved
        less, more = PLACEMENT
        return Range(
            max(self.reserved.low - int(self.reserved.low * less), self.least_capacity.low),
            self.reserved.point + kernels.point,
            self.reserved.high + int(self.reserved.high * more) + kernels.high,
        )

    @property
    def lower(self) -> int | None:
        """The least peak of :attr:`taken`; None where no bound is known."""
        return None if self.unsimulated else self.taken.low

    @property
    def upper(self) -> int | None:
        """The highest peak of :attr:`taken`; None where no bound is known."""
        return None if self.unsimulated else self.taken.high

    @property
    def needed(self) -> Range:
        """Memory that a card must have: the least capacity, and what is outside of it."""
        return self.least_capacity + self.apart

    @property
    def fits(self) -> Fit:
        """Whether it fits: ``if estimate.fits``, or ``fits("24 GiB")`` for any other capacity.

        Without one it is the capacity that was asked for, else the card's memory.
        """
        capacity = self.capacity
        if capacity is None and self.card is not None:
            capacity = self.card.memory
        return Fit(capacity, self.needed, self.unsimulated is None)

    @property
    def peak(self) -> Moment:
        """Resident blocks when most is allocated; none on a device without any event."""
        if self.device not in self.recording.devices:
            return Moment(self.device, 0, -1, 0, (), {}, {}, {}, {}, {})
        return self.recording.at(self.peak_row, self.device)

    @property
    def by_role(self) -> Mapping[str, int]:
        """Bytes at the peak by role; :data:`REMAINDER` makes them add up to the peak."""
        peak = self.peak
        return _with_remainder(peak.by_role, peak, REMAINDER)

    @property
    def by_line(self) -> Mapping[SourceLine | None, int]:
        """Bytes at the peak by line, largest first.

        Bytes of no known line, and the workspaces of libraries, are under None.
        """
        peak = self.peak
        return _with_remainder(peak.by_line, peak, None)

    @property
    def by_module(self) -> Mapping[str | None, int]:
        """Bytes at the peak by module, largest first; what is of none is under None."""
        peak = self.peak
        return _with_remainder(peak.by_module, peak, None)

    def explain(self) -> str:
        """Return the answer in words and figures: what takes how much, and why."""
        shown = permitted(self)
        return text_of_blocks(shown.presenter().explanation(shown))

    def without_source(self) -> Estimate:
        """Return it without the text of files, and without expressions as names."""
        recording = self.recording.without_source()
        return self if recording is self.recording else replace(self, recording=recording)

    def _fields(self) -> dict[str, Any]:
        # and the events of the recording packed, with which it is read back equal
        return {**self.presenter().summary(self), "log": tlens.packed(self.recording)}

    @classmethod
    def from_dict(cls, data: Any) -> Estimate:
        """Return the estimate that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        recording = tlens.unpacked(cls, data)
        names = {each.name for each in fields(cls)}
        # a file of before it was kept is of no run that is known, not of this one
        given = {"run": None, **{name: data[name] for name in names & data.keys()}}
        try:
            return restored(cls, given, recording=recording, peak_row=data["peak"]["row"])
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileFormatError(f"damaged estimate: {error}") from None

    def __repr__(self) -> str:
        return f"<estimate for {self.device}: {self.peak_reserved} bytes reserved at the peak>"


def _with_remainder(sums: Mapping[Any, int], peak: Moment, key: Any) -> dict[Any, int]:
    found = dict(sums)
    rest = (peak.bytes if peak.held is None else peak.held) - peak.bytes
    if rest:
        found[key] = found.get(key, 0) + rest
    return dict(sorted(found.items(), key=lambda item: -item[1]))
