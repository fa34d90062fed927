"""Figures of an estimate for all formats: required on card, the parts of the peak, the sum."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tensorlens.planning.estimate.result import REMAINDER, Estimate, Range
from tensorlens.planning.estimate.simulation import block_changes
from tensorlens.recording.analysis import Resident
from tensorlens.render.source import printable

ACTIVATION_GRADIENT = "gradient of activations"
"""Kind of blocks that backward makes and that are gradients of no parameter."""
WORKSPACE = "workspace"
"""Kind of blocks that belong to no tensor: scratch of kernels, workspaces of libraries."""
UNATTRIBUTED = "unattributed"
"""Kind of the difference if the blocks do not add up to the peak."""

_KINDS = (
    *("parameter", "buffer", "gradient", "optimizer", "activation", ACTIVATION_GRADIENT),
    *("input", "other", "temporary", WORKSPACE, REMAINDER, UNATTRIBUTED),
)
_ORDER = {kind: place for place, kind in enumerate(_KINDS)}
"""Order of the kinds; unknown roles come with ``other``."""
_LABELS = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "activation": "activations",
    ACTIVATION_GRADIENT: "gradients of activations",
    "input": "inputs",
    "other": "other tensors",
    "temporary": "temporaries of operators",
    REMAINDER: "remainders of blocks",
}


@dataclass(slots=True)
class PeakPart:
    """Blocks of one kind at the peak."""

    kind: str
    """A role, or one of the names above: :data:`WORKSPACE`, the remainder."""
    label: str
    """Shown text: ``parameters``, ``cuBLAS workspace``."""
    nbytes: int = 0
    blocks: int = 0


def peak_parts(estimate: Estimate) -> Mapping[str, PeakPart]:
    """Return the parts of the peak by label, in the order of a report.

    They add up to the likeliest allocated peak. Besides roles there are the terms of the estimate,
    and gradients of no parameter.
    """
    peak = estimate.peak
    terms = _terms(estimate)
    found: dict[str, PeakPart] = {}
    for block in peak.tensors:
        kind, label = _kind_and_label(block, terms)
        part = found.setdefault(label, PeakPart(kind, label))
        part.nbytes += block.nbytes
        part.blocks += 1
    held = peak.bytes if peak.held is None else peak.held
    rests = {REMAINDER: held - peak.bytes, UNATTRIBUTED: estimate.peak_allocated - held}
    for kind, nbytes in rests.items():
        label = _LABELS.get(kind, kind)
        found[label] = PeakPart(kind, label, nbytes)
    ordered = sorted(
        found.values(), key=lambda part: (_ORDER.get(part.kind, _ORDER["other"]), -part.nbytes)
    )
    return {part.label: part for part in ordered if part.nbytes}


def library_bytes(estimate: Estimate) -> Mapping[str, int]:
    """Return the workspaces that libraries keep at the peak, by name."""
    terms = _terms(estimate)
    found: dict[str, int] = {}
    for block in estimate.peak.tensors:
        kind, name = _kind_and_label(block, terms)
        if kind == WORKSPACE and block.charged is None:
            found[name] = found.get(name, 0) + block.nbytes
    return found


def peaks_by_kind(estimate: Estimate) -> Mapping[str, int]:
    """Return the highest bytes of each kind, each at its own moment."""
    terms = _terms(estimate)
    level: dict[str, int] = {}
    most: dict[str, int] = {}
    for _, block, nbytes in resident_changes(estimate):
        kind = _kind_and_label(block, terms)[0]
        level[kind] = level.get(kind, 0) + (block.nbytes if nbytes > 0 else -block.nbytes)
        most[kind] = max(most.get(kind, 0), level[kind])
    return most


def resident_changes(estimate: Estimate) -> Iterator[tuple[int, Resident, int]]:
    """Yield allocations and frees of the device: row, block, bytes as :func:`block_changes`."""
    changes = [*block_changes(estimate.recording.log, estimate.device)]
    rows = [row for row, made, _ in changes if row == made]
    blocks = dict(zip(rows, estimate.recording.blocks(rows), strict=True))
    return ((row, blocks[made], nbytes) for row, made, nbytes in changes)


def bytes_of(parts: Mapping[str, PeakPart], kind: str) -> int:
    """Return the bytes of all parts of a kind."""
    return sum(part.nbytes for part in parts.values() if part.kind == kind)


def _terms(estimate: Estimate) -> frozenset[str]:
    return frozenset(term.name for term in estimate.terms if not term.apart)


def _kind_and_label(block: Resident, terms: Collection[str]) -> tuple[str, str]:
    for name in (block.op, block.name):
        if name in terms and name is not None:
            return WORKSPACE, name
    kind = block.role
    if kind == "gradient" and not (block.known or block.name.endswith(".grad")):
        kind = ACTIVATION_GRADIENT
    return kind, _LABELS.get(kind, kind)


Sign = Literal["", "+", "-", "="]
"""Sign of a row in a sum: empty for the first, ``=`` for the sum so far."""

_PEAK_FUNCTIONS = {
    "torch": ("torch.cuda.max_memory_allocated()", "torch.cuda.max_memory_reserved()"),
    "tensorflow": ("get_memory_info('GPU:0')['peak']", "regions of the BFC allocator"),
}
"""Framework to its functions that return the two peaks of a real run."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the report."""

    label: str
    nbytes: Range
    meaning: str
    """A few words on its meaning."""
    sign: Sign = ""


@dataclass(frozen=True, slots=True)
class SumRow:
    """One line of a sum that can be checked by hand."""

    sign: Sign
    label: str
    nbytes: int


def requirement(estimate: Estimate) -> tuple[Figure, ...]:
    """Return the sum that decides whether it fits; its bounds add up too."""
    if estimate.card is None:
        return ()
    outside = f"outside of {estimate.framework}"
    return (
        Figure("minimum that fits", estimate.least_capacity, "reserved, without unused cache"),
        Figure(outside, estimate.apart, "CUDA context, loaded kernels", "+"),
        Figure("required on card", estimate.needed, "decides whether it fits", "="),
    )


def tool_figures(estimate: Estimate) -> tuple[Figure, ...]:
    """Return the figures that tools will show: the framework's two peaks, and the driver's."""
    if estimate.card is None:
        return (Figure("peak allocated", estimate.allocated, "in tensors and in kernels"),)
    allocated, reserved = _PEAK_FUNCTIONS.get(estimate.framework, _PEAK_FUNCTIONS["torch"])
    return (
        Figure("peak allocated", estimate.allocated, allocated),
        Figure("peak reserved", estimate.reserved, reserved),
        Figure("allocator total", estimate.taken, "reserved + kernels: nvidia-smi less context"),
    )


def sum_rows(estimate: Estimate, parts: Mapping[str, PeakPart]) -> Iterator[SumRow]:
    """Yield the sum from the parts of the peak up to required on card.

    It adds up to the byte: to the allocated and the reserved peak, to the least capacity, and with
    the terms outside of the framework to the requirement.
    """
    for number, part in enumerate(parts.values()):
        yield _signed(part.nbytes, part.label, first=not number)
    yield SumRow("=", "allocated at the peak", estimate.peak_allocated)
    if estimate.card is None and not estimate.apart.high:
        return
    cached = estimate.peak_reserved - estimate.peak_allocated
    if cached:
        yield _signed(cached, "held in segments beyond that")
    yield SumRow("=", "reserved at the peak", estimate.peak_reserved)
    difference = estimate.least_capacity.point - estimate.peak_reserved
    if difference:
        label = "cached, returned when needed" if difference < 0 else "up to whole segments"
        yield _signed(difference, label)
        yield SumRow("=", "minimum that fits", estimate.least_capacity.point)
    for term in estimate.terms:
        if term.apart and term.nbytes.high:
            yield _signed(term.nbytes.point, printable(term.name))
    yield SumRow("=", "required on card", estimate.needed.point)


def _signed(nbytes: int, label: str, *, first: bool = False) -> SumRow:
    return SumRow("-" if nbytes < 0 else "" if first else "+", label, abs(nbytes))
