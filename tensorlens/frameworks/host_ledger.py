"""The ledger of host memory: what the process holds besides its tensors, and the machine's rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tensorlens.frameworks.process import heap_now
from tensorlens.records.ledger import Block, Ledger, Term

_STATUS = re.compile(r"^(VmRSS|RssFile|RssShmem):\s*(\d+) kB$", re.MULTILINE)

_EXPLANATIONS = {
    "allocated": "handed out by the CPU allocator: tensors' storages and the scratch of kernels",
    "named": "the storages of the tensors listed, each once",
    "unnamed": "blocks that no tensor known to Python or to autograd's graph accounts for",
    "reserved": "the resident set of this process, as the kernel counts it",
    "cached": "all else that is resident, less what was allocated but never touched",
    "other": "the other processes and the kernel",
    "driver_used": "in use on this machine: its memory less what the kernel could still give",
    "driver_total": "the machine's memory",
}


@dataclass(frozen=True, slots=True)
class Handed:
    """What the framework's CPU allocator has handed out, in bytes."""

    source: str
    precision: str
    named: int
    allocated: int | None = None
    reason: str | None = None
    """Why ``allocated`` is unknown."""
    blocks: tuple[Block, ...] = ()
    """The largest blocks that are not named."""
    block_count: int = 0
    kernels: int | None = None
    """What the kernels keep for their next call in the C heap, as far as they count it."""
    kernels_reason: str = "nothing counts what this framework's kernels keep"
    """Why ``kernels`` is unknown."""


def host_ledger(handed: Handed) -> Ledger:
    """Return the CPU's ledger; what this system does not tell is None, with the reason."""
    missing: dict[str, str] = {}
    resident = _resident()
    machine = _machine()
    allocated, reserved = handed.allocated, resident.get("VmRSS")
    if allocated is None:
        missing["allocated"] = handed.reason or "nothing counts the CPU allocator"
        missing["unnamed"] = missing["cached"] = missing["allocated"]
    if reserved is None:
        missing["reserved"] = "this system does not tell the resident set"
        missing.update(dict.fromkeys(("cached", "other"), missing["reserved"]))
    if machine is None:
        missing["driver_used"] = "this system does not tell how much memory is in use"
        missing.update(dict.fromkeys(("other", "driver_total"), missing["driver_used"]))
    used, total = machine or (None, None)
    cached = _difference(reserved, allocated)
    parts = tuple(_parts(cached, handed, resident))
    if parts and handed.kernels is None:
        missing["kernels"] = handed.kernels_reason
    return Ledger(
        device="cpu",
        source=handed.source,
        precision=handed.precision,
        allocated=allocated,
        named=handed.named,
        unnamed=_difference(allocated, handed.named),
        reserved=reserved,
        cached=cached,
        other=_difference(used, reserved),
        driver_used=used,
        driver_total=total,
        parts=parts,
        explanations=_EXPLANATIONS,
        missing=missing,
        blocks=handed.blocks,
        block_count=handed.block_count,
    )


def _difference(total: int | None, part: int | None) -> int | None:
    return None if total is None or part is None else total - part


def _resident() -> Mapping[str, int]:
    """Return the resident set and what of it is mapped from files and shared, in bytes."""
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return {key: int(size) * 1024 for key, size in _STATUS.findall(text)}
    except OSError:
        pass
    try:
        return {"VmRSS": int(psutil.Process().memory_info().rss)}
    except (psutil.Error, OSError):
        return {}


def _machine() -> tuple[int, int] | None:
    try:
        memory = psutil.virtual_memory()
        return int(memory.total - memory.available), int(memory.total)
    except (psutil.Error, OSError, RuntimeError):
        return None


def _parts(cached: int | None, handed: Handed, resident: Mapping[str, int]) -> Sequence[Term]:
    """Split what is resident besides tensors; the parts add up to ``cached``."""
    if cached is None or handed.allocated is None:
        return ()
    parts = []
    if "RssFile" in resident:
        text = "pages of files: the code of libraries, weights loaded with mmap"
        parts.append(Term("cached", "files", "code and mapped files", resident["RssFile"], text))
    if "RssShmem" in resident:
        text = "shared with other processes: tensors of data loader workers, share_memory_()"
        parts.append(Term("cached", "shared", "shared memory", resident["RssShmem"], text))
    parts.append(Term("cached", "kernels", "in-kernel caches", handed.kernels, _kernels(handed)))
    heap = heap_now()
    if heap is not None:
        text = "in use besides: NumPy, large Python objects, what oneDNN keeps"
        other = heap[0] - handed.allocated - (handed.kernels or 0)
        parts.append(Term("cached", "heap", "other heap", other, text))
        text = "free in the C heap: kept by malloc for the next request"
        parts.append(Term("cached", "free", "free heap", heap[1], text))
    known = sum(part.nbytes or 0 for part in parts)
    text = "Python objects, stacks; negative where memory was allocated and never touched"
    parts.append(Term("cached", "rest", "Python and the rest", cached - known, text))
    return parts


def _kernels(handed: Handed) -> str:
    if handed.kernels is None:
        return f"{handed.kernels_reason}; what kernels keep is in other heap"
    return (
        "buffers that MKL keeps for its next call, by its own count (mkl_mem_stat); oneDNN counts "
        "neither its primitives nor its packed weights: they are in other heap"
    )
