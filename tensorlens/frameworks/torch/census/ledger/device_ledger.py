"""The ledgers of accelerators: their allocator's blocks, the tensors in them, and the driver.

Nothing here initialises a device, touches a peak statistic, or changes what the allocator caches.
A snapshot of CUDA's allocator does add one ``snapshot`` entry to its trace where the program
records one (``c10/cuda/CUDACachingAllocator.cpp``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch as _torch

from tensorlens.frameworks.base import UNKNOWN
from tensorlens.frameworks.census.balance import balanced, difference
from tensorlens.frameworks.torch import accelerators
from tensorlens.frameworks.torch.backends import KINDS
from tensorlens.frameworks.torch.census.ledger import driver_memory
from tensorlens.frameworks.torch.census.ledger.cuda_blocks import Account, Range, account
from tensorlens.records.ledger import Block, Ledger, Term
from tensorlens.records.tensors import TensorTable

_LISTED = tuple(kind.name for kind in KINDS if kind.lists_blocks)
_BY_BLOCK = {
    "allocated": "handed out by the caching allocator: requests rounded up to 512 B, and what is "
    "left of a large block where it is not split (up to 1 MiB)",
    "named": "of it, the blocks that known tensors lie in, each once",
    "unnamed": "of it, the blocks that no known tensor lies in: workspaces of cuBLAS and other "
    "libraries, buffers of extensions, tensors that only native code holds",
    "reserved": "segments that the caching allocator holds from the driver",
    "cached": "of it, what is not handed out: kept for later requests",
}
_BY_STATISTICS = {
    "allocated": "handed out by the allocator, as its statistics tell",
    "named": "of it, the bytes of known tensors' storages, without the allocator's rounding",
    "unnamed": "of it, the rest: the allocator's rounding, workspaces of libraries, tensors that "
    "only native code holds",
    "reserved": "what the allocator holds from the driver, as its statistics tell",
    "cached": "of it, what is not handed out: kept for later requests",
}
_DRIVER = {
    "other": "in use on the device beside what is reserved here: contexts, kernels and libraries' "
    "own memory, and other processes",
    "driver_used": "in use on the device by all processes, as the driver tells: total less free",
    "driver_total": "what the device has, as the driver tells",
}
_METAL = {
    "other": "what Metal has given this process beside what is reserved here: MPSGraph and kernels",
    "driver_used": "what Metal has given this process; it does not tell of others",
    "driver_total": "the most that Metal recommends to use",
}


def explanations(kind: str, no_blocks: str | None) -> dict[str, str]:
    """Return one line for each figure.

    Args:
        kind: the backend.
        no_blocks: why the allocator's blocks are not known; None where they are.
    """
    found = {**_BY_BLOCK, **(_METAL if kind == "mps" else _DRIVER)}
    if no_blocks is not None:
        found |= _BY_STATISTICS
        found["unnamed"] += f"; no block is listed: {no_blocks}"
    return found


def outside_term(nbytes: int) -> Term:
    """Return the part of ``other`` that known tensors lie in."""
    return Term(
        *("other", "outside", "tensors outside of the allocator"),
        nbytes,
        "storages that lie in none of the allocator's segments: shared by another process "
        "(CUDA IPC) or made by another library, or freed while this was read",
    )


def process_terms(context: int | None, other: int) -> Iterator[Term]:
    """Give the two parts of ``other``: this process's and everything else.

    Args:
        context: bytes of this process beside what is reserved; None where nobody tells.
        other: bytes of both.
    """
    yield Term(
        *("other", "context", "context and libraries of this process"),
        context,
        "what NVML (on ROCm amdsmi) tells of this process, less what is reserved: the context, "
        "loaded kernels, memory of libraries that ask the driver themselves",
    )
    yield Term(
        *("other", "other_processes", "other processes and the driver"),
        None if context is None else other - context,
        "the rest of other",
    )


_NOT_OURS = ("cpu", "meta")
# aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize, before and since sm_90
_CUBLAS_WORKSPACES = frozenset({(2 * 4096 + 8 * 16) << 10, (8 * 4096) << 10})


def device_ledgers(table: TensorTable) -> dict[str, Ledger]:
    """Return a ledger for each accelerator that is in use or has tensors in the table.

    A figure that cannot be had is None and has its reason in ``Ledger.missing``. Where torch
    tells each block (CUDA, ROCm, XPU), ``named`` is the size of the blocks that the table's
    storages lie in; elsewhere it is the bytes of the storages. Raises nothing.
    """
    return ledgers_of(table, _torch, accelerators)


def ledgers_of(table: TensorTable, torch: Any, devices: Any) -> dict[str, Ledger]:
    """Return :func:`device_ledgers` of some torch.

    Args:
        table: the tensors.
        torch: the torch module, or what stands in for it in a test.
        devices: an :class:`~tensorlens.frameworks.torch.accelerators.Accelerators` of it.
    """
    storages = _storages(table, devices)
    snapshots = _Snapshots(torch)
    names = dict.fromkeys((*devices.used_devices(), *storages))
    return {
        name: _Device(torch, devices, name, storages.get(name, []), snapshots).ledger()
        for name in names
    }


def _storages(table: TensorTable, devices: Any) -> dict[str, list[Range]]:
    found: dict[str, list[Range]] = {}
    places = [
        None
        if name.partition(":")[0] in _NOT_OURS
        else found.setdefault(_spelled(devices, name), [])
        for name in table.devices
    ]
    if not found:
        return found
    for row in table.counted():
        place = places[table.device[row]]
        address, nbytes = table.storage[row], table.storage_nbytes[row]
        if place is not None and address and nbytes:
            place.append((address, address + nbytes))
    return found


def _spelled(devices: Any, name: str) -> str:
    try:
        return str(devices.canonical(name))
    except Exception:  # a backend from outside torch
        return name


class _Snapshots:
    """The segments of each backend, read once for all of its devices."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._read: dict[str, Any] = {}

    def segments(self, kind: str) -> Any:
        """Return the segments of all devices.

        Raises:
            LookupError: the backend's allocator does not tell its blocks.
            Exception: whatever torch raises.
        """
        if kind not in self._read:
            self._read[kind] = self._take(kind)
        return self._read[kind]

    def _take(self, kind: str) -> Any:
        take = getattr(getattr(self._torch, kind, None), "memory_snapshot", None)
        if take is None or kind not in _LISTED:
            raise LookupError(f"the allocator of {kind} does not tell its blocks")
        if kind == "cuda" and self._torch.cuda.get_allocator_backend() != "native":
            raise LookupError("this allocator does not tell its blocks")
        try:
            # the trace may be gigabytes; an older torch, and XPU's, cannot leave it out
            return take(include_traces=False)
        except TypeError:
            return take()


@dataclass
class _Figures:
    """Figures of a device; one is None where ``missing`` has the reason."""

    allocated: int | None = None
    reserved: int | None = None
    named: int = 0
    driver_used: int | None = None
    driver_total: int | None = None
    no_blocks: str | None = "the allocator was not asked"
    """Why the allocator's blocks are not known; None where they are."""
    parts: list[Term] = field(default_factory=list)
    blocks: tuple[Block, ...] = ()
    block_count: int = 0
    missing: dict[str, str] = field(default_factory=dict)

    def lacks(self, reason: str, *names: str) -> None:
        """Note why figures cannot be had; the first reason stays."""
        for name in names:
            self.missing.setdefault(name, reason)


class _Device:
    """One accelerator, about to be asked."""

    def __init__(
        self, torch: Any, devices: Any, name: str, storages: list[Range], snapshots: _Snapshots
    ) -> None:
        self._torch = torch
        self._name = name
        self._kind, _, number = name.partition(":")
        self._index = int(number or 0)
        self._backend = devices.backends.get(self._kind)
        self._devices = devices
        self._storages = storages
        self._snapshots = snapshots
        self._seen = _Figures()

    def ledger(self) -> Ledger:
        """Return the device's ledger; asked once."""
        seen = self._seen
        reason = self._unusable()
        if reason is not None:
            seen.named = _total(self._storages)
            seen.lacks(reason, "allocated", "reserved", "driver_used", "driver_total")
        else:
            self._read_allocator()
            self._read_driver()
        return self._balanced()

    def _unusable(self) -> str | None:
        """Return why the device cannot be asked, or None."""
        backend = self._backend
        if backend is None:
            return None
        try:
            if backend.ready():
                return None
            if backend.forked():
                return f"{self._kind} cannot be used in a forked process"
        except Exception as error:
            return _line(error)
        return f"this process has not initialised {self._kind}"

    def _read_allocator(self) -> None:
        try:
            segments = self._snapshots.segments(self._kind)
            self._take(account(segments, self._index, self._storages, self._workspaces()))
        except Exception as error:  # an allocator may count its bytes and not tell its blocks
            self._seen.no_blocks = _line(error)
            self._read_statistics()

    def _workspaces(self) -> frozenset[int]:
        nvidia = self._kind == "cuda" and not getattr(self._torch.version, "hip", None)
        return _CUBLAS_WORKSPACES if nvidia else frozenset()

    def _take(self, found: Account) -> None:
        seen = self._seen
        seen.no_blocks = None
        seen.allocated, seen.reserved, seen.named = found.allocated, found.reserved, found.named
        seen.blocks, seen.block_count = found.blocks, found.block_count
        seen.parts += found.parts
        if found.outside:
            seen.parts.append(outside_term(found.outside))

    def _read_statistics(self) -> None:
        seen = self._seen
        seen.named = _total(self._storages)
        try:
            if self._backend is None:
                figures = driver_memory.accelerator_figures(self._torch, self._kind, self._index)
                seen.allocated, seen.reserved = figures
                return
            allocated, reserved = _statistics(self._backend, self._index)
        except Exception as error:
            seen.lacks(_line(error), "allocated", "reserved")
            return
        for name, value in (("allocated", allocated), ("reserved", reserved)):
            if value == UNKNOWN:
                seen.lacks(self._backend.missing.get(name, "torch does not tell"), name)
            else:
                setattr(seen, name, value)

    def _read_driver(self) -> None:
        seen = self._seen
        try:
            self._require_use()
            seen.driver_used, seen.driver_total = driver_memory.in_use(
                self._torch, self._kind, self._index
            )
        except Exception as error:
            seen.lacks(_line(error), "driver_used", "driver_total")

    def _require_use(self) -> None:
        """Pass if asking the driver changes nothing; raises LookupError."""
        backend = self._backend
        if backend is None:
            return
        # the driver would make a context on a device that has none
        if not backend.in_use(self._index):
            raise LookupError(f"this process has not used {self._name}")
        if self._kind != "cuda" or not backend.in_use(backend.current()):
            # the next question would make one too (c10/cuda/CUDAGraphsC10Utils.h:
            # currentStreamCaptureStatusMayInitCtx), and without one nothing is captured here
            return
        if self._torch.cuda.is_current_stream_capturing():
            raise LookupError("a CUDA graph is being captured, which asking the driver could end")

    def _balanced(self) -> Ledger:
        seen = self._seen
        source, precision = self._described()
        self._add_process()
        return balanced(
            self._name,
            source,
            precision,
            named=seen.named,
            allocated=seen.allocated,
            reserved=seen.reserved,
            driver_used=seen.driver_used,
            driver_total=seen.driver_total,
            missing=seen.missing,
            parts=seen.parts,
            explanations=explanations(self._kind, seen.no_blocks),
            blocks=seen.blocks,
            block_count=seen.block_count,
        )

    def _described(self) -> tuple[str, str]:
        try:
            counter = self._devices.device_counter(self._name)
        except Exception:  # a backend from outside torch
            return f"allocator of {self._kind}", "as that allocator counts, if it does"
        return counter.source, counter.precision

    def _add_process(self) -> None:
        """Split ``other`` between this process and everything else."""
        seen = self._seen
        other = difference(seen.driver_used, seen.reserved)
        if self._kind != "cuda" or other is None or seen.reserved is None:
            return
        context: int | None = None
        try:
            process = driver_memory.of_this_process(self._torch, self._index)
            if not seen.reserved <= process <= seen.reserved + other:
                raise LookupError(f"{process:,} B for this process do not fit the driver's figures")
            context = process - seen.reserved
        except Exception as error:
            seen.lacks(_line(error), "context", "other_processes")
        seen.parts += process_terms(context, other)


def _statistics(backend: Any, index: int) -> tuple[int, int]:
    """Return ``(allocated, reserved)`` without starting a new peak, as ``Backend.read`` would."""
    statistics = backend.statistics
    allocated, _, reserved = statistics.figures(index) if statistics else backend.read(index)
    return allocated, reserved


def _total(storages: list[Range]) -> int:
    # on MPS an address is that of a Metal buffer's object, so that ranges mean nothing there
    largest: dict[int, int] = {}
    for start, end in storages:
        largest[start] = max(end - start, largest.get(start, 0))
    return sum(largest.values())


def _line(error: Exception) -> str:
    text = str(error.args[0]) if isinstance(error, LookupError) and error.args else str(error)
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__
