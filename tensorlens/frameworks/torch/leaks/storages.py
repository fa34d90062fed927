"""Storage objects that lie in given memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.census.scan import Scan


def storages_in(addresses: Collection[int], storages: Sequence[Any]) -> dict[int, list[Any]]:
    """Return those of the storages that begin at one of the addresses, by address."""
    # a storage asked by itself would make a copy that was put off
    shown = [(each, tensor) for each in storages if (tensor := _shown(each)) is not None]
    scan, found = Scan(), dict[int, list[Any]]()
    rows = scan.add([tensor for _, tensor in shown])
    for row, (storage, _) in zip(rows, shown, strict=True):
        if row >= 0 and scan.storage[row] in addresses:
            found.setdefault(scan.storage[row], []).append(storage)
    scan.close()
    return found


def _shown(storage: Any) -> Any:
    """Return a tensor that shows a storage, or None where there can be none."""
    try:
        device = torch._C.StorageBase.device.__get__(storage)
        with torch.no_grad():
            return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    except Exception:
        return None
