"""The one line that a person reads first of a device, the same in text and HTML."""

from __future__ import annotations

from tensorlens.render.figures import counted, size
from tensorlens.tensors.difference import Difference
from tensorlens.tensors.present.inventory import DeviceInventory, is_memory


def headline(device: DeviceInventory) -> str:
    """Return how much is in tensors and how much of the allocated bytes that explains."""
    text = f"{size(device.nbytes)} in {counted(device.count)}" if device.count else "no tensors"
    ledger = device.ledger
    if ledger is None:
        return text
    outside = device.nbytes - ledger.named
    if outside > 0:
        text += f" ({size(outside)} of it not from the allocator)"
    elif size(ledger.named) != size(device.nbytes):
        # allocators round up: to 512 bytes on a CUDA device
        text += f" ({size(ledger.named)} as allocated)"
    if ledger.allocated is None or ledger.unnamed is None:
        return f"{text}, {size(ledger.allocated)} allocated"
    if ledger.unnamed:
        return f"{text}, {size(ledger.allocated)} allocated: {size(ledger.unnamed)} unnamed"
    if not ledger.allocated:
        return f"{text}, nothing allocated"
    return f"{text}, all of {size(ledger.allocated)} allocated"


def without_memory(device: DeviceInventory) -> str:
    """Return what is said of a device like ``meta``."""
    return f"{counted(device.count)}, no memory (would take {size(device.nbytes)})"


def change_headline(difference: Difference, device: str) -> str:
    """Return by how much a device's tensors and its allocated bytes changed."""
    roles = [role for role in difference.roles if role.device == device]
    before, after = sum(role.before for role in roles), sum(role.after for role in roles)
    text = f"{size(after - before, signed=True)} in tensors ({size(before)} to {size(after)})"
    ledger = difference.ledger.get(device)
    if not is_memory(device):
        return f"{size(after - before, signed=True)} in tensors that take no memory"
    if ledger is None:
        return text
    allocated, unnamed = ledger.change("allocated"), ledger.change("unnamed")
    return f"{text}, allocated {size(allocated, signed=True)}, unnamed {size(unnamed, signed=True)}"
