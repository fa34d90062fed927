"""The ledgers of accelerators, by what TensorFlow says of their allocators."""

from __future__ import annotations

from collections.abc import Mapping

from tensorlens.frameworks.census.balance import balanced
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
    missing = dict.fromkeys(("reserved", "driver_used", "driver_total"), _UNKNOWN)
    if allocated is None:
        missing["allocated"] = "TensorFlow keeps no figures of this device"
    rounding = Term("named", "rounding", "rounding of chunks", named - exact, _ROUNDING)
    return balanced(
        device,
        "TensorFlow BFC allocator",
        f"chunks of the allocator, multiples of {UNIT} B",
        named=named,
        allocated=allocated,
        missing=missing,
        parts=(rounding,) if sizes else (),
        explanations=_EXPLANATIONS,
    )
