"""Report on a loop over batches: memory by epoch, the batch of the peak, and growth.

As text, epochs and batches count from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorlens.lines.report import DeviceSource
from tensorlens.render.blocks import (
    Block,
    Column,
    Fold,
    Heading,
    Note,
    Row,
    Section,
    Table,
    named,
)
from tensorlens.render.figures import counted, exact_size, size
from tensorlens.render.formats import text_of_blocks
from tensorlens.tensors.reporter import MemReporter
from tensorlens.units import format_bytes

FIT, EVALUATE, PREDICT = "fit", "evaluate", "predict"

_MOST_ROWS = 24
_LAST_ROWS = 8
_ADVICE = {
    FIT: "tensorlens.LeakWatch() around the loop names what stays and who holds it",
    EVALUATE: "tensorlens.find_leaks(lambda: model.evaluate(x, y)) names what stays",
    PREDICT: "tensorlens.find_leaks(lambda: model.predict(x)) names what stays",
}


@dataclass(frozen=True, slots=True)
class EpochLevel:
    """Bytes of one device in an epoch, or in an ``evaluate`` or ``predict``; -1 if unknown."""

    allocated: int
    """Bytes allocated at the end."""
    peak: int
    """Peak in bytes."""
    batches: tuple[int, int] | None
    """First and last batch that ran at the peak, numbered from 0 as in Keras: several if
    ``steps_per_execution`` is above 1. None if it was between batches."""

    def logs(self, device: str, prefix: str = "") -> dict[str, float]:
        """Return the known figures by their names in logs: ``memory/cpu``, ``memory/cpu_peak``.

        They are floats, as TensorFlow would convert a large int to 32 bits.
        """
        key = f"{prefix}memory/{device.replace(':', '_')}"
        named = {key: self.allocated, f"{key}_peak": self.peak}
        return {name: float(nbytes) for name, nbytes in named.items() if nbytes >= 0}


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a ``fit``, or the pass of an ``evaluate`` or ``predict``."""

    number: int
    """Number of the epoch, from 0 as in Keras."""
    batches: int = 0
    devices: Mapping[str, EpochLevel] = field(default_factory=dict)
    validation: Mapping[str, EpochLevel] = field(default_factory=dict)
    """Levels of the ``evaluate`` at the end of the epoch; empty without one."""
    ended: bool = False
    """False while it runs, and if an exception or an interrupt ended it."""


@dataclass(frozen=True, slots=True)
class SteadyGrowth:
    """Memory that each batch, epoch or call leaves behind."""

    per: str
    """``batch``, ``epoch`` or ``call``."""
    nbytes: float
    """Bytes left by each."""
    count: int
    """Number of batches, epochs or calls examined."""


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Memory of one ``fit``, ``evaluate`` or ``predict``."""

    kind: str
    """:data:`FIT`, :data:`EVALUATE` or :data:`PREDICT`."""
    epochs: tuple[Epoch, ...]
    growth: Mapping[str, tuple[SteadyGrowth, ...]]
    """By device; absent without growth."""
    devices: tuple[DeviceSource, ...]
    largest: tuple[tuple[str, str], ...] = ()
    """Size and description of the largest tensors at the end."""
    notes: tuple[str, ...] = ()

    def peak(self, device: str) -> tuple[int, Epoch] | None:
        """Return the peak and its epoch; None if unknown."""
        peaks = [
            (level.peak, epoch)
            for epoch in self.epochs
            for level in (epoch.devices.get(device), epoch.validation.get(device))
            if level is not None and level.peak >= 0
        ]
        return max(peaks, key=lambda pair: pair[0], default=None)

    def peaks_text(self) -> str:
        """Return the known peaks of devices as text."""
        peaks = ((self.peak(device.name), device.name) for device in self.devices)
        return ", ".join(f"{format_bytes(peak[0])} on {name}" for peak, name in peaks if peak)

    def __str__(self) -> str:
        blocks: list[Block] = [Section(tuple(_head(self)))]
        blocks += [_device(self, source) for source in self.devices]
        if self.largest:
            table = Table((Column("Size"), Column("Tensor", "prose")), self.largest)
            blocks.append(Section((table,), "Largest tensors at the end"))
        return text_of_blocks(blocks).rstrip("\n")


def largest_tensors(roots: Iterable[Any], top: int) -> tuple[tuple[str, str], ...]:
    """Return size and description of the ``top`` largest tensors, by the names of ``roots``."""
    if top <= 0:
        return ()
    table = MemReporter([root for root in roots if root is not None]).snapshot().tensors
    rows = sorted(table.counted(), key=table.storage_nbytes.__getitem__, reverse=True)
    largest = []
    for tensor in (table[row] for row in rows[:top]):
        kind = f"{tensor.role}, {tensor.dtype} {tensor.shape}"
        note = f" ({tensor.note})" if tensor.note else ""
        text = f"{tensor.name}: {kind}, {tensor.device}{note}"
        largest.append((format_bytes(tensor.storage_nbytes), text))
    return tuple(largest)


def _head(report: LoopReport) -> Iterator[Block]:
    batches = sum(epoch.batches for epoch in report.epochs)
    counts = [counted(batches, "batch")]
    if report.kind == FIT:
        counts.insert(0, counted(len(report.epochs), "epoch"))
    if report.epochs and not report.epochs[-1].ended:
        counts.append("the last epoch not ended" if report.kind == FIT else "not ended")
    yield Heading(f"Memory of {report.kind}: {', '.join(counts)}")
    yield named(
        (device.name, ", ".join(filter(None, (device.source, device.precision))))
        for device in report.devices
    )
    for note in report.notes:
        yield Note(note, label="note")


def _device(report: LoopReport, source: DeviceSource) -> Section:
    device = source.name
    peak = report.peak(device)
    if peak is None:
        title = f"peak n/a: {source.missing.get('peak', 'nothing ran')}"
    else:
        nbytes, epoch = peak
        title = f"peak {exact_size(nbytes)} {_when(report, epoch, device, nbytes)}"
    blocks: list[Block] = []
    if report.kind == FIT and any(device in epoch.devices for epoch in report.epochs):
        blocks.append(_table(report, device, has_peaks=peak is not None))
    for growth in report.growth.get(device, ()):
        rate = size(round(growth.nbytes))
        span = counted(growth.count, growth.per)
        blocks.append(
            Note(f"grows by {rate} per {growth.per}, seen over {span}: {_ADVICE[report.kind]}")
        )
    return Section(tuple(blocks), title, device)


def _when(report: LoopReport, epoch: Epoch, device: str, nbytes: int) -> str:
    level, validation = epoch.devices.get(device), ""
    if level is None or level.peak != nbytes:
        level, validation = epoch.validation[device], " of validation"
    of_epoch = f" of epoch {epoch.number + 1}" if report.kind == FIT else ""
    if level.batches is None:
        return ("in validation" if validation else "between batches") + of_epoch
    several = "es" if level.batches[0] != level.batches[1] else ""
    return f"in batch{several} {_numbers(level)}{validation}{of_epoch}"


def _table(report: LoopReport, device: str, *, has_peaks: bool) -> Table:
    columns = [Column("Epoch"), Column("Batches")]
    if has_peaks:
        columns += [Column("Peak"), Column("In batch")]
    is_validated = has_peaks and any(device in epoch.validation for epoch in report.epochs)
    columns += [Column("Validation peak")] if is_validated else []
    columns += [Column("At the end"), Column("Change")]
    rows: list[Row | Fold] = []
    before: int | None = None
    for epoch in report.epochs:
        level = epoch.devices.get(device)
        if level is None:
            continue
        cells = [str(epoch.number + 1) + ("" if epoch.ended else "*"), str(epoch.batches)]
        cells += [size(_known(level.peak)), _numbers(level)] if has_peaks else []
        if is_validated:
            validation = epoch.validation.get(device)
            cells.append("" if validation is None else size(_known(validation.peak)))
        now = _known(level.allocated)
        cells.append(size(now))
        cells.append("" if before is None or now is None else size(now - before, signed=True))
        rows.append(Row(tuple(cells)))
        before = now
    hidden = len(rows) - _MOST_ROWS
    if hidden > 0:
        fold = Fold(f"{hidden} more epochs", ())
        rows[_MOST_ROWS - _LAST_ROWS : -_LAST_ROWS] = [fold]
    return Table(tuple(columns), tuple(rows))


def _known(nbytes: int) -> int | None:
    return nbytes if nbytes >= 0 else None


def _numbers(level: EpochLevel) -> str:
    if level.batches is None:
        return "between"
    first, last = level.batches
    return str(first + 1) if first == last else f"{first + 1}-{last + 1}"
