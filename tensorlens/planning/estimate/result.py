"""The result of an estimate: peaks with bounds, and their parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, ClassVar

from tensorlens.errors import FileFormatError, UsageError
from tensorlens.planning.card import Card
from tensorlens.planning.trace import Caution, Formula, Framework
from tensorlens.recording import tlens
from tensorlens.recording.analysis import Moment
from tensorlens.recording.recordings import Recording
from tensorlens.records.documents import Document, restored
from tensorlens.records.run import Run, current_run
from tensorlens.records.tensors import SourceLine
from tensorlens.render.formats import text_of_blocks
from tensorlens.render.shown import permitted
from tensorlens.units import parse_bytes

REMAINDER = "remainder"
"""Kind of the bytes that the allocator hands out with blocks and cannot split off."""

CONTEXT = "CUDA context"
"""The term that :attr:`Estimate.upper` leaves out."""

PLACEMENT = (0.1, 0.2)
"""Measured trainings take at most a tenth less and a fifth more (``docs/estimate.md``)."""


class Verdict(StrEnum):
    """Whether it fits: within all bounds, at the likeliest figure only, or not at all."""

    FITS = "fits"
    TIGHT = "tight"
    TOO_LARGE = "does not fit"


@dataclass(frozen=True, slots=True)
class Range:
    """A figure in bytes with its bounds."""

    low: int
    point: int
    """The likeliest figure."""
    high: int

    @classmethod
    def exactly(cls, nbytes: int) -> Range:
        """Return the range of an exact figure."""
        return cls(nbytes, nbytes, nbytes)

    @property
    def is_exact(self) -> bool:
        """Whether the bounds are the same."""
        return self.low == self.high

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.point + other.point, self.high + other.high)


@dataclass(frozen=True, slots=True)
class EstimateTerm:
    """Memory that belongs to no tensor of the program."""

    name: str
    """``cuBLAS workspace``, ``CUDA context``."""
    nbytes: Range
    """Bytes at the peak if the framework holds it, else for the life of the process."""
    why: str
    """One line: the rule and where it comes from."""
    apart: bool = False
    """Whether the framework's allocator does not hold it."""


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
    """Whether a capacity is enough: true if the likeliest figure fits; callable for any other."""

    capacity: int | None
    """Bytes of the card, context included; None for host memory without a capacity."""
    needed: Range
    """Least capacity that works, with the memory outside of the framework."""
    is_bounded: bool = True
    """Whether ``needed`` has bounds; otherwise its likeliest figure decides."""

    def __call__(self, capacity: int | str | None = None) -> Fit:
        """Return whether it fits into a number of bytes, or a text such as ``24 GiB``.

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
    """The largest batch that fits, whose estimate this is."""

    batch: int
    """0 if even the smallest batch tried does not fit."""
    capacity: int
    """Capacity in bytes, context included."""
    next_batch: int | None = None
    """The smallest batch known not to fit; None if all those tried fit."""
    next_needed: int | None = None
    """Bytes that it needs: the likeliest figure, or the upper bound."""
    is_limit: bool = False
    """Whether it is the largest batch to try."""
    is_uneven: bool = False
    """Whether some batch needs less than a smaller one."""
    is_sure: bool = False
    """Whether upper bounds were compared with the capacity."""


@dataclass(frozen=True)
class Estimate(Document):
    """Memory that a program's steps need on one device; prints itself, in a notebook as HTML.

    All sizes are bytes. Memory outside of the framework is only in :attr:`apart`, :attr:`upper`,
    :attr:`needed` and :attr:`fits`.
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
    """Peak over all steps, as ``torch.cuda.max_memory_allocated()`` or ``peak`` of
    ``tf.config.experimental.get_memory_info`` will return it."""
    reserved: Range
    """Peak over all steps, as ``torch.cuda.max_memory_reserved()`` will return it."""
    least_capacity: Range
    """The minimum that fits, if cached segments are returned for lack of room."""
    steps: Sequence[EstimatedStep]
    terms: Sequence[EstimateTerm]
    recording: Recording
    """The steps as :func:`tensorlens.record` would have seen them."""
    peak_row: int
    """Row of the recording after which the most bytes are allocated."""
    capacity: int | None = None
    """The requested capacity."""
    batch: int | None = None
    """The most common first dimension of the inputs; None without inputs."""
    settings: str = ""
    """The simulated ``PYTORCH_CUDA_ALLOC_CONF``."""
    warnings: Sequence[Caution] = ()
    """Assumptions: parts that did not run as on a real device."""
    unsimulated: str | None = None
    """The part of the program that cannot be simulated, so that figures have no bounds; or None."""
    versions: Mapping[str, str] | None = None
    program: str = ""
    """Name of the program: ``train.py:make_step``."""
    framework: Framework = "torch"
    """The framework whose allocator was simulated."""
    formulas: Sequence[Formula] = ()
    """Rules of thumb, and why they are off."""
    largest: LargestBatch | None = None
    """Result of :func:`tensorlens.max_batch`, if the estimate is its answer."""
    run: Run | None = field(default_factory=current_run, compare=False, repr=False)

    @property
    def peak_allocated(self) -> int:
        """Likeliest allocated peak."""
        return self.allocated.point

    @property
    def peak_reserved(self) -> int:
        """Likeliest reserved peak."""
        return self.reserved.point

    @property
    def apart(self) -> Range:
        """Memory outside of the framework: the context and loaded kernels."""
        return sum((term.nbytes for term in self.terms if term.apart), Range(0, 0, 0))

    @property
    def taken(self) -> Range:
        """Memory of the process as the driver shows it, without its context.

        It is the reserved memory and the loaded kernels. The placement of segments depends on every
        request, so the bounds allow :data:`PLACEMENT` of the reserved memory below and above the
        simulated figure, but not less than :attr:`least_capacity`.
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
        """Lower bound of :attr:`taken`; None if unknown."""
        return None if self.unsimulated else self.taken.low

    @property
    def upper(self) -> int | None:
        """Upper bound of :attr:`taken`; None if unknown."""
        return None if self.unsimulated else self.taken.high

    @property
    def needed(self) -> Range:
        """Memory that a card must have: the least capacity and the memory outside."""
        return self.least_capacity + self.apart

    @property
    def fits(self) -> Fit:
        """Whether it fits: ``if estimate.fits``, or ``fits("24 GiB")`` for any other capacity.

        Without an argument it means the requested capacity, or the card's memory.
        """
        capacity = self.capacity
        if capacity is None and self.card is not None:
            capacity = self.card.memory
        return Fit(capacity, self.needed, self.unsimulated is None)

    @property
    def peak(self) -> Moment:
        """The moment of the peak; without blocks if the device has no events."""
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
        """Bytes at the peak by module, largest first; bytes of no module are under None."""
        peak = self.peak
        return _with_remainder(peak.by_module, peak, None)

    def explain(self) -> str:
        """Return the estimate in words: the size of each part, and its reason."""
        shown = permitted(self)
        return text_of_blocks(shown.presenter().explanation(shown))

    def without_source(self) -> Estimate:
        """Return the estimate without source text and without expressions as names."""
        recording = self.recording.without_source()
        return self if recording is self.recording else replace(self, recording=recording)

    def _fields(self) -> dict[str, Any]:
        # with the packed events, the estimate is read back equal
        return {**self.presenter().summary(self), "log": tlens.packed(self.recording)}

    @classmethod
    def from_dict(cls, data: Any) -> Estimate:
        """Return the estimate that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        recording = tlens.unpacked(cls, data)
        names = {each.name for each in fields(cls)}
        # an older file has no run; it must not get the present one
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
