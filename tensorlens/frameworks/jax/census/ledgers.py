"""The ledgers of the devices that JAX uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorlens.frameworks.host_ledger import Handed, host_ledger
from tensorlens.frameworks.jax.counters import (
    DeviceCounter,
    HostCounter,
    memory_stats,
    pool_of,
    used_devices,
)
from tensorlens.records.ledger import Ledger
from tensorlens.records.tensors import TensorTable

_ALLOCATED = (
    "the buffers of live arrays, each once, also those that NumPy or another library lent, and what"
    " accelerators keep in the host's memory, which the counter leaves out; JAX keeps no other"
    " figure of the CPU: what XLA takes while it computes is in other heap"
)
_KERNELS = "XLA does not count what it keeps for its next call"
_NO_FIGURES = "JAX keeps no figures of this device"
_UNKNOWN = "JAX does not tell what its allocator holds of this device"
_DRIVER = "JAX does not tell what else is on the device"
_EXPLANATIONS = {
    "allocated": "handed out by XLA's allocator, as device.memory_stats() tells: bytes_in_use",
    "named": "the buffers of live arrays, each once",
    "unnamed": "compiled programs, what a computation holds while it runs, and rounding of blocks",
    "reserved": (
        "what XLA's allocator holds of the device; of a GPU 75 % at once, unless"
        " XLA_PYTHON_CLIENT_PREALLOCATE=false"
    ),
    "cached": "held by XLA's allocator and not handed out",
}


def ledgers(table: TensorTable) -> dict[str, Ledger]:
    """Return the ledger of the host, and of each accelerator in use."""
    named: Mapping[str, int] = _named(table)
    devices = {*used_devices(), *named} - {"cpu"}
    host = _host(named.get("cpu", 0))
    return {
        "cpu": host,
        **{device: _device(device, named.get(device, 0)) for device in sorted(devices)},
    }


def _named(table: TensorTable) -> dict[str, int]:
    sums: dict[str, int] = {}
    for row in table.counted():
        device = table.devices[table.device[row]]
        sums[device] = sums.get(device, 0) + table.storage_nbytes[row]
    return sums


def _host(named: int) -> Ledger:
    handed = Handed(
        source=HostCounter.source,
        precision=HostCounter.precision,
        named=named,
        allocated=named,
        kernels_reason=_KERNELS,
    )
    ledger = host_ledger(handed)
    return replace(ledger, explanations={**ledger.explanations, "allocated": _ALLOCATED})


def _device(device: str, named: int) -> Ledger:
    stats = memory_stats(device)
    allocated = None if stats is None else stats["bytes_in_use"]
    reserved = None if stats is None else pool_of(stats)
    missing = dict.fromkeys(("other", "driver_used", "driver_total"), _DRIVER)
    if allocated is None:
        missing.update(dict.fromkeys(("allocated", "unnamed"), _NO_FIGURES))
    if reserved is None:
        missing.update(dict.fromkeys(("reserved", "cached"), _UNKNOWN))
    unnamed = None if allocated is None else allocated - named
    cached = None if allocated is None or reserved is None else reserved - allocated
    return Ledger(
        device=device,
        source=DeviceCounter.source,
        precision=DeviceCounter.precision,
        allocated=allocated,
        named=named,
        unnamed=unnamed,
        reserved=reserved,
        cached=cached,
        other=None,
        driver_used=None,
        driver_total=None,
        explanations=_EXPLANATIONS,
        missing=missing,
    )
