"""Host memory of torch's tensors: matched to the CPU allocator's blocks, or told apart."""

from __future__ import annotations

import bisect
from array import array
from pathlib import Path

from tensorlens.frameworks.base import Counter
from tensorlens.frameworks.host_ledger import Handed, host_ledger
from tensorlens.frameworks.torch.census.kernel_caches import kernel_caches
from tensorlens.frameworks.torch.census.table import Births
from tensorlens.frameworks.torch.cpu import CpuCounter
from tensorlens.records.ledger import Block, Ledger
from tensorlens.records.tensors import TensorTable

_MINUS_ONE = array("q", [-1]).tobytes()


def cpu_ledger(table: TensorTable, counter: Counter, births: Births) -> Ledger:
    """Return the CPU's ledger, and note in ``table`` whose memory torch did not allocate."""
    rows = _cpu_rows(table)
    if not isinstance(counter, CpuCounter):
        named = sum(table.storage_nbytes[row] for row in rows if table.alias[row] < 0)
        reason = f"{counter.source} does not count tensors alone"
        return host_ledger(Handed(counter.source, counter.precision, named, reason=reason))
    everything = len(rows) == len(table)
    addresses = table.storage if everything else array("Q", map(table.storage.__getitem__, rows))
    balance = counter.allocator.balance(addresses)
    # sizes are small, so that no two of them look like that
    if _MINUS_ONE in balance.sizes.tobytes():
        _note_foreign(
            table, [row for row, size in zip(rows, balance.sizes, strict=True) if size < 0]
        )
    blocks = tuple(
        Block(address, size, births.line(birth) if birth >= 0 else None)
        for address, size, birth in balance.unmatched
    )
    kernels, reason = kernel_caches()
    return host_ledger(
        Handed(
            source=counter.source,
            precision=counter.precision,
            named=balance.named,
            allocated=balance.allocated,
            blocks=blocks,
            block_count=balance.unmatched_count,
            kernels=kernels,
            kernels_reason=reason,
        )
    )


def _cpu_rows(table: TensorTable) -> range | list[int]:
    cpu = table.devices.index("cpu") if "cpu" in table.devices else -1
    if cpu >= 0 and len(table.devices) == 1:
        return range(len(table))
    return [row for row, device in enumerate(table.device) if device == cpu]


def _note_foreign(table: TensorTable, rows: list[int]) -> None:
    """Say of each storage that torch's allocator did not give where its memory is from."""
    maps: _Maps | None = None
    for row in rows:
        if table.storage[row] and table.storage_nbytes[row] and table.note[row] < 0:
            maps = maps or _Maps()
            table.note[row] = _number(table.notes, maps.origin(table.storage[row]))


def _number(texts: list[str], text: str) -> int:
    if text not in texts:
        texts.append(text)
    return texts.index(text)


class _Maps:
    """The files that are mapped into this process, by address."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._files: list[str] = []
        try:
            lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
        except OSError:
            lines = []
        for line in lines:
            span, _, rest = line.partition(" ")
            self._ends.append(int(span.partition("-")[2], 16))
            self._files.append(rest.partition("/")[2])

    def origin(self, address: int) -> str:
        """Return a line on whose memory this is."""
        place = bisect.bisect_right(self._ends, address)
        path = self._files[place] if place < len(self._files) else ""
        if path.startswith("dev/shm/") or "(deleted)" in path:
            return "shared memory, not torch's allocator"
        if path:
            return f"mapped from {Path(path).name}, not torch's allocator"
        return "memory of NumPy or another library, not torch's allocator"
