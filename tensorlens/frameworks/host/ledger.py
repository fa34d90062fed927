"""The ledger of host memory, and the remainders of every ledger.

No term of a ledger is negative. Its figures are read one after the other, while threads allocate
and free, and count differently: memory that was never touched is allocated but not resident. If a
part reads larger than its whole, the remainder is unknown, with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.host.process_memory import heap_now, resident, status_sizes
from tensorlens.records.ledger import BALANCE, Ledger, Part, UnnamedBlock
from tensorlens.records.tensors import TensorTable

_ACCELERATOR_REASONS = {
    "unnamed": "the tensors have more bytes than the allocator has handed out: some are not its "
    "own, or were freed meanwhile",
    "cached": "the allocator tells more bytes handed out than it holds",
    "other": "the driver tells less in use than the allocator holds: it was given back meanwhile, "
    "or is managed memory that is not on the device now",
}
_MOVED = "it changed while it was read"
_HEAP = ("heap", "free", "rest")
"""Parts that the heap counts, and the rest."""
_MERGED_TEXT = (
    "the C heap, Python objects, stacks: the heap has more than is resident, so it was allocated "
    "and not touched yet, or changed while it was read"
)
REASONS = {
    "cached": "more is allocated than is resident: some of it was never touched, or is swapped out",
    "other": "less is in use on this machine than this process has resident: it changed meanwhile",
}
"""Remainder of the CPU's ledger to the reason why it may be unknown."""

_EXPLANATIONS = {
    "allocated": "handed out by the CPU allocator: tensors' storages and the scratch of kernels",
    "named": "the storages of the tensors listed, each once",
    "unnamed": "blocks that no tensor known to Python or to autograd's graph accounts for",
    "reserved": "the resident set of this process, as the kernel counts it",
    "cached": "all else that is resident, less what was allocated but never touched",
    "other": "the other processes and the kernel",
    "driver_used": "in use on this machine: its memory less what the kernel could still give, and "
    "the pages of files that this process has resident",
    "driver_total": "the machine's memory",
}


@dataclass(frozen=True, slots=True)
class AllocatorFigures:
    """Bytes that the framework's CPU allocator has handed out."""

    source: str
    precision: str
    named: int
    allocated: int | None = None
    reason: str | None = None
    """Why ``allocated`` is unknown."""
    blocks: tuple[UnnamedBlock, ...] = ()
    """The largest blocks that are not named."""
    block_count: int = 0


def cpu_rows(table: TensorTable) -> range | list[int]:
    """Return the rows of the tensors on the CPU."""
    cpu = table.devices.index("cpu") if "cpu" in table.devices else -1
    if cpu >= 0 and len(table.devices) == 1:
        return range(len(table))
    return [row for row, device in enumerate(table.device) if device == cpu]


def ledger_of_process(table: TensorTable, rows: Sequence[int], counter: Counter) -> Ledger:
    """Return the CPU's ledger with a counter of the whole process in place of the allocator's.

    Args:
        table: the tensors of the census.
        rows: their rows on the CPU.
        counter: the counter of the process.
    """
    named = sum(table.storage_nbytes[row] for row in rows if table.alias[row] < 0)
    reason = f"{counter.source} does not count tensors alone"
    return host_ledger(AllocatorFigures(counter.source, counter.precision, named, reason=reason))


def host_ledger(handed: AllocatorFigures) -> Ledger:
    """Return the CPU's ledger; figures that the system does not report are None, with a reason."""
    missing: dict[str, str] = {}
    heap, sizes, machine = heap_now(), _resident_sizes(), _machine()
    reserved = sizes.get("VmRSS")
    cached = difference(reserved, handed.allocated)
    parts = () if cached is None else _split(cached, handed, sizes, heap)
    if handed.allocated is None:
        missing["allocated"] = handed.reason or "nothing counts the CPU allocator"
    if reserved is None:
        missing["reserved"] = "this system does not tell the resident set"
    if machine is None:
        missing["driver_used"] = "this system does not tell how much memory is in use"
        missing["driver_total"] = missing["driver_used"]
    used, total = machine or (None, None)
    if used is not None and total is not None:
        # the kernel counts pages of files as available, though they are resident
        used = min(total, used + sizes.get("RssFile", 0))
    ledger = Ledger(
        "cpu",
        handed.source,
        handed.precision,
        named=handed.named,
        allocated=handed.allocated,
        reserved=reserved,
        driver_used=used,
        driver_total=total,
        missing=missing,
        parts=fitted(parts, cached),
        explanations=_EXPLANATIONS,
        blocks=handed.blocks,
        block_count=handed.block_count,
    )
    return balanced(ledger, REASONS)


def fitted(parts: Sequence[Part], cached: int | None) -> tuple[Part, ...]:
    """Return the parts with those of ``cached`` adding up to it and none of them negative.

    The C heap counts requested memory, touched or not, and changes while the rest is read. If
    its parts exceed the kernel's figure, heap and rest become one part; if that is negative too,
    ``cached`` has no parts.
    """
    own = [part for part in parts if part.of == "cached"]
    if all((part.nbytes or 0) >= 0 for part in own):
        return tuple(parts)
    others = [part for part in parts if part.of != "cached"]
    fixed = [part for part in own if part.key not in _HEAP or part.nbytes is None]
    rest = difference(cached, sum(part.nbytes or 0 for part in fixed))
    if rest is None:
        return tuple(others)
    return (*fixed, Part("cached", "rest", "heap and Python", rest, _MERGED_TEXT), *others)


def _resident_sizes() -> Mapping[str, int]:
    """Return the resident set and its parts mapped from files and shared, in bytes."""
    sizes = status_sizes()
    if not sizes and (size := resident()) >= 0:
        sizes["VmRSS"] = size
    return sizes


def _machine() -> tuple[int, int] | None:
    try:
        memory = psutil.virtual_memory()
        return int(memory.total - memory.available), int(memory.total)
    except (psutil.Error, OSError, RuntimeError):
        return None


def _split(
    cached: int, handed: AllocatorFigures, sizes: Mapping[str, int], heap: tuple[int, int] | None
) -> Sequence[Part]:
    """Split resident memory other than tensors; the parts add up to ``cached``.

    The heap's part and the last may be negative: see :func:`fitted`.
    """
    parts = []
    if "RssFile" in sizes:
        text = "pages of files: the code of libraries, weights loaded with mmap"
        parts.append(Part("cached", "files", "code and mapped files", sizes["RssFile"], text))
    if "RssShmem" in sizes:
        text = "shared with other processes: tensors of data loader workers, share_memory_()"
        parts.append(Part("cached", "shared", "shared memory", sizes["RssShmem"], text))
    if heap is not None:
        text = "in use besides: NumPy, large Python objects, what MKL and oneDNN keep"
        other = heap[0] - (handed.allocated or 0)
        parts.append(Part("cached", "heap", "other heap", other, text))
        text = "free in the C heap: kept by malloc for the next request"
        parts.append(Part("cached", "free", "free heap", heap[1], text))
    known = sum(part.nbytes or 0 for part in parts)
    text = "Python objects, stacks; less what was allocated and never touched"
    parts.append(Part("cached", "rest", "Python and the rest", cached - known, text))
    return parts


def balanced(ledger: Ledger, reasons: Mapping[str, str] = {}) -> Ledger:
    """Return the ledger with ``unnamed``, ``cached`` and ``other`` worked out.

    Args:
        ledger: the other figures, with a reason for each that is None. Negative parts become
            unknown.
        reasons: remainder to the reason why a part may read larger than its whole; by default
            those of accelerators.
    """
    missing = dict(ledger.missing)
    remainders: dict[str, Any] = {}
    for whole, (part, remainder) in BALANCE:
        figures = {name: getattr(ledger, name) for name in (whole, part)}
        unknown = next((name for name, figure in figures.items() if figure is None), None)
        remainders[remainder] = difference(*figures.values())
        if unknown is not None:
            missing.setdefault(remainder, missing.get(unknown, f"{unknown} is not known"))
        elif remainders[remainder] is None:
            missing[remainder] = {**_ACCELERATOR_REASONS, **reasons}[remainder]
    parts = []
    for term in ledger.parts:
        if term.nbytes is not None and term.nbytes < 0:
            missing.setdefault(term.key, _MOVED)
            term = replace(term, nbytes=None)
        parts.append(term)
    return replace(ledger, parts=tuple(parts), missing=missing, **remainders)


def difference(whole: int | None, part: int | None) -> int | None:
    """Return a figure without a part of it; None if either is unknown or the part is larger."""
    return None if whole is None or part is None or part > whole else whole - part
