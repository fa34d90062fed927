"""Writes the memory of a loop over batches as text; epochs and batches count from 1."""

from __future__ import annotations

from collections.abc import Iterator

from tensorlens.integrations.epoch_report import EVALUATE, FIT, PREDICT, Epoch, Level, LoopReport
from tensorlens.render import text_of_blocks
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
from tensorlens.render.figures import exact_size, size

_MOST_ROWS = 24
_LAST_ROWS = 8
_ADVICE = {
    FIT: "tensorlens.LeakWatch() around the loop names what stays and who holds it",
    EVALUATE: "tensorlens.find_leaks(lambda: model.evaluate(x, y)) names what stays",
    PREDICT: "tensorlens.find_leaks(lambda: model.predict(x)) names what stays",
}


def text(report: LoopReport) -> str:
    """Return the report as lines of the width of standard output."""
    blocks: list[Block] = [Section(tuple(_head(report)))]
    blocks += [_device(report, source.name) for source in report.devices]
    if report.largest:
        table = Table((Column("Size"), Column("Tensor", "prose")), report.largest)
        blocks.append(Section((table,), "Largest tensors at the end"))
    return text_of_blocks(blocks).rstrip("\n")


def _head(report: LoopReport) -> Iterator[Block]:
    batches = sum(epoch.batches for epoch in report.epochs)
    counts = [_counted(batches, "batch", "batches")]
    if report.kind == FIT:
        counts.insert(0, _counted(len(report.epochs), "epoch", "epochs"))
    if report.epochs and not report.epochs[-1].ended:
        counts.append("the last epoch not ended" if report.kind == FIT else "not ended")
    yield Heading(f"Memory of {report.kind}: {', '.join(counts)}")
    yield named(
        (device.name, ", ".join(filter(None, (device.source, device.precision))))
        for device in report.devices
    )
    for note in report.notes:
        yield Note(note, label="note")


def _device(report: LoopReport, device: str) -> Section:
    found = report.peak(device)
    if found is None:
        source = next(each for each in report.devices if each.name == device)
        title = f"peak n/a: {source.missing.get('peak', 'nothing ran')}"
    else:
        nbytes, epoch = found
        title = f"peak {exact_size(nbytes)} {_when(report, epoch, device, nbytes)}"
    blocks: list[Block] = []
    if report.kind == FIT and any(device in epoch.devices for epoch in report.epochs):
        blocks.append(_table(report, device, has_peaks=found is not None))
    for growth in report.growth.get(device, ()):
        rate = size(round(growth.nbytes))
        looked = _counted(growth.count, growth.per, _plural(growth.per))
        grows = f"grows by {rate} per {growth.per}, seen over {looked}"
        blocks.append(Note(f"{grows}: {_ADVICE[report.kind]}"))
    return Section(tuple(blocks), title, device)


def _when(report: LoopReport, epoch: Epoch, device: str, nbytes: int) -> str:
    level = epoch.devices.get(device)
    if level is not None and level.peak == nbytes:
        where = "between batches" if level.batches is None else f"in {_batch(level)}"
    else:
        level = epoch.validation[device]
        where = "in validation" if level.batches is None else f"in {_batch(level)} of validation"
    of = f" of epoch {epoch.number + 1}" if report.kind == FIT else ""
    return f"{where}{of}"


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
        cells.append(size(_known(level.allocated)))
        cells.append("" if before is None else size(level.allocated - before, signed=True))
        rows.append(Row(tuple(cells)))
        before = level.allocated if level.allocated >= 0 else None
    hidden = len(rows) - _MOST_ROWS
    if hidden > 0:
        fold = Fold(f"{hidden} more epochs", ())
        rows[_MOST_ROWS - _LAST_ROWS : -_LAST_ROWS] = [fold]
    return Table(tuple(columns), tuple(rows))


def _known(nbytes: int) -> int | None:
    return nbytes if nbytes >= 0 else None


def _batch(level: Level) -> str:
    return ("batches " if level.batches and level.batches[0] != level.batches[1] else "batch ") + (
        _numbers(level)
    )


def _numbers(level: Level) -> str:
    if level.batches is None:
        return "between"
    first, last = level.batches
    return str(first + 1) if first == last else f"{first + 1}-{last + 1}"


def _counted(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _plural(what: str) -> str:
    return "batches" if what == "batch" else f"{what}s"
