"""Ledgers of accelerators: blocks of the allocator, tensors in them, figures of the driver.

Nothing here initialises a device, changes a peak statistic, or changes what the allocator caches.
A snapshot of CUDA's allocator adds a ``snapshot`` entry to the trace that the program may record
(``c10/cuda/CUDACachingAllocator.cpp``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorlens.frameworks.host.ledger import balanced, difference
from tensorlens.frameworks.torch import accelerators
from tensorlens.frameworks.torch.accelerators import Accelerators
from tensorlens.frameworks.torch.backends import DRIVER, Cuda
from tensorlens.frameworks.torch.census.cuda_blocks import Range, account
from tensorlens.guards import first_line
from tensorlens.records.ledger import Ledger, Part
from tensorlens.records.tensors import TensorTable

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
_PARTS = {
    "outside": (
        "tensors outside of the allocator",
        "storages that lie in none of the allocator's segments: shared by another process "
        "(CUDA IPC) or made by another library, or freed while this was read",
    ),
    "context": (
        "context and libraries of this process",
        "what NVML tells of this process, less what is reserved: the context, loaded kernels, "
        "memory of libraries that ask the driver themselves",
    ),
    "other_processes": ("other processes and the driver", "the rest of other"),
}
"""Label and explanation of the parts of ``other``."""

_NO_ACCELERATORS = ("cpu", "meta")


def device_ledgers(
    table: TensorTable, devices: Accelerators = accelerators.here
) -> dict[str, Ledger]:
    """Return a ledger for each accelerator that is in use or has tensors in the table.

    An unknown figure is None and has its reason in ``Ledger.missing``. If torch lists blocks (CUDA,
    ROCm, XPU), ``named`` is the size of the blocks with storages of the table, else the bytes of
    these storages. Raises nothing.
    """
    storages = _storages(table, devices)
    # read once for all devices of a backend
    segments = functools.cache(lambda kind: devices.backends[kind].segments())
    names = dict.fromkeys((*devices.used_devices(), *storages))
    return {
        name: _Device(devices, name, storages.get(name, []), segments).ledger() for name in names
    }


def _storages(table: TensorTable, devices: Accelerators) -> dict[str, list[Range]]:
    storages: dict[str, list[Range]] = {}
    places = [
        None
        if name.partition(":")[0] in _NO_ACCELERATORS
        else storages.setdefault(_canonical(devices, name), [])
        for name in table.devices
    ]
    if not storages:
        return storages
    for row in table.counted():
        place = places[table.device[row]]
        address, nbytes = table.storage[row], table.storage_nbytes[row]
        if place is not None and address and nbytes:
            place.append((address, address + nbytes))
    return storages


def _canonical(devices: Accelerators, name: str) -> str:
    try:
        return str(devices.canonical(name))
    except Exception:  # a backend from outside torch
        return name


class _Device:
    """One accelerator and its figures."""

    def __init__(
        self,
        devices: Accelerators,
        name: str,
        storages: list[Range],
        segments: Callable[[str], Any],
    ) -> None:
        self._devices, self._name = devices, name
        self._kind, self._index = accelerators.kind_and_index(name)
        self._backend: Any = devices.backends.get(self._kind)
        self._storages, self._segments = storages, segments
        self._why_no_blocks: str | None = "the allocator was not asked"
        self._figures: dict[str, Any] = {"named": _storage_bytes(storages), "allocated": None}
        """Fields of the ledger."""
        self._parts: list[Part] = []
        self._missing: dict[str, str] = {}

    def ledger(self) -> Ledger:
        """Return the device's ledger; to be called once."""
        reason = self._unusable()
        if reason is not None:
            self._set_missing(reason, "allocated", "reserved", "driver_used", "driver_total")
        else:
            self._read_allocator()
            self._read_driver()
            self._add_process()
        ledger = Ledger(
            self._name,
            *self._source_and_precision(),
            missing=self._missing,
            parts=tuple(self._parts),
            explanations=self._explanations(),
            **self._figures,
        )
        return balanced(ledger)

    def _explanations(self) -> dict[str, str]:
        driver = DRIVER if self._backend is None else self._backend.driver_explanations
        if self._why_no_blocks is None:
            return {**_BY_BLOCK, **driver}
        unnamed = f"{_BY_STATISTICS['unnamed']}; no block is listed: {self._why_no_blocks}"
        return {**_BY_STATISTICS, **driver, "unnamed": unnamed}

    def _set_missing(self, reason: str, *names: str) -> None:
        """Note why figures are unknown; the first reason stays."""
        for name in names:
            self._missing.setdefault(name, reason)

    def _unusable(self) -> str | None:
        """Return why the device cannot be read, or None."""
        if self._backend is None:
            return f"torch tells nothing of the memory of {self._kind} devices"
        try:
            if self._backend.ready():
                return None
            if self._backend.forked():
                return f"{self._kind} cannot be used in a forked process"
        except Exception as error:
            return first_line(error)
        return f"this process has not initialised {self._kind}"

    def _source_and_precision(self) -> tuple[str, str]:
        try:
            counter = self._devices.device_counter(self._name)
        except Exception:  # a backend from outside torch
            return f"allocator of {self._kind}", "as that allocator counts, if it does"
        return counter.source, counter.precision

    def _read_allocator(self) -> None:
        try:
            segments = self._segments(self._kind)
            found = account(segments, self._index, self._storages, self._backend.workspaces)
        except Exception as error:  # an allocator may count bytes without listing blocks
            self._why_no_blocks = first_line(error)
            self._read_statistics()
            return
        self._why_no_blocks = None
        for name in ("allocated", "reserved", "named", "blocks", "block_count"):
            self._figures[name] = getattr(found, name)
        self._parts += found.parts
        if found.outside:
            self._add_part("outside", found.outside)

    def _read_statistics(self) -> None:
        """Read the figures and keep the peak: ``Backend.read`` resets it if it has statistics."""
        statistics = self._backend.statistics
        try:
            read = statistics.figures if statistics else self._backend.read
            allocated, _, reserved = read(self._index)
            self._figures |= {"allocated": allocated, "reserved": reserved}
        except Exception as error:
            self._set_missing(first_line(error), "allocated", "reserved")

    def _read_driver(self) -> None:
        try:
            self._backend.require_context(self._index)
            used, total = self._backend.driver_figures(self._index)
            self._figures |= {"driver_used": used, "driver_total": total}
        except Exception as error:
            self._set_missing(first_line(error), "driver_used", "driver_total")

    def _add_process(self) -> None:
        """Split ``other`` into this process and all others."""
        reserved = self._figures.get("reserved")
        other = difference(self._figures.get("driver_used"), reserved)
        if not isinstance(self._backend, Cuda) or other is None or reserved is None:
            return
        context: int | None = None
        try:
            process = self._backend.process_bytes(self._index)
            if not reserved <= process <= reserved + other:
                raise LookupError(f"{process:,} B for this process do not fit the driver's figures")
            context = process - reserved
        except Exception as error:
            self._set_missing(first_line(error), "context", "other_processes")
        self._add_part("context", context)
        self._add_part("other_processes", None if context is None else other - context)

    def _add_part(self, key: str, nbytes: int | None) -> None:
        label, explanation = _PARTS[key]
        self._parts.append(Part("other", key, label, nbytes, explanation))


def _storage_bytes(storages: list[Range]) -> int:
    # on MPS an address is that of a Metal buffer's object: ranges mean nothing there
    largest: dict[int, int] = {}
    for start, end in storages:
        largest[start] = max(end - start, largest.get(start, 0))
    return sum(largest.values())
