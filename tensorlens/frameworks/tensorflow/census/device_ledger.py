"""The ledgers of accelerators, by what TensorFlow says of their allocators."""

from __future__ import annotations

from collections.abc import Mapping

from tensorlens.frameworks.tensorflow import context, counters
from tensorlens.records.ledger import Ledger, Term
from tensorlens.records.tensors import TensorTable

UNIT = 256
"""Bytes that a chunk is a multiple of (tsl/framework/bfc_allocator.h, ``kMinAllocationSize``)."""

_UNKNOWN = "TensorFlow does not tell what its allocator holds of the device"
_EXPLANATIONS = {
    "allocated": "chunks that TensorFlow's allocator has handed out, as get_memory_info tells",
    "named": f"the buffers of the tensors listed, each once, rounded up to {UNIT} B",
    "unnamed": "chunks that no known tensor accounts for, and chunks that were not split",
}
_ROUNDING = f"what a chunk has beyond its tensor: chunks are multiples of {UNIT} B"


def device_ledgers(table: TensorTable) -> Mapping[str, Ledger]:
    """Return the ledger of each accelerator in use."""
    used = set(counters.used_devices()) | (set(table.devices) - {"cpu"})
    return {device: _ledger(device, table) for device in sorted(used)}


def _ledger(device: str, table: TensorTable) -> Ledger:
    number = table.devices.index(device) if device in table.devices else -1
    sizes = [table.storage_nbytes[row] for row in table.counted() if table.device[row] == number]
    exact = sum(sizes)
    named = sum(-(-size // UNIT) * UNIT for size in sizes)
    theirs = f"{'GPU' if device.startswith('cuda') else device.partition(':')[0].upper()}"
    info = context.memory_info(f"{theirs}:{device.partition(':')[2]}", reset=False)
    allocated = None if info is None else info[0]
    names = ("reserved", "cached", "other", "driver_used", "driver_total")
    missing = dict.fromkeys(names, _UNKNOWN)
    if allocated is None:
        reason = "TensorFlow keeps no figures of this device"
        missing.update(dict.fromkeys(("allocated", "unnamed"), reason))
    rounding = Term("named", "rounding", "rounding of chunks", named - exact, _ROUNDING)
    return Ledger(
        device=device,
        source="TensorFlow BFC allocator",
        precision=f"chunks of the allocator, multiples of {UNIT} B",
        allocated=allocated,
        named=named,
        unnamed=None if allocated is None else allocated - named,
        reserved=None,
        cached=None,
        other=None,
        driver_used=None,
        driver_total=None,
        parts=(rounding,) if sizes else (),
        explanations=_EXPLANATIONS,
        missing=missing,
    )
