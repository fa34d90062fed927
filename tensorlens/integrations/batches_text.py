"""What a loop over batches took, as text; epochs and batches count from 1, as Keras prints them."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.integrations.batches import EVALUATE, FIT, PREDICT, Epoch, Level, LoopReport
from tensorlens.render.figures import exact_size, size
from tensorlens.render.text import TextRenderer
from tensorlens.render.text.page import Page, aligned, ruled

_MOST_ROWS = 24
_LAST_ROWS = 8
_ADVICE = {
    FIT: "tensorlens.LeakWatch() around the loop names what stays and who holds it",
    EVALUATE: "tensorlens.find_leaks(lambda: model.evaluate(x, y)) names what stays",
    PREDICT: "tensorlens.find_leaks(lambda: model.predict(x)) names what stays",
}


def text(report: LoopReport) -> str:
    """Return the report as lines of the width of standard output."""
    renderer = TextRenderer()
    page = Page(renderer.width, renderer.encoding, renderer.view)
    parts = ["\n".join(_header(report, page))]
    parts += ["\n".join(_device(report, source.name, page)) for source in report.devices]
    if report.largest:
        parts.append("\n".join(["Largest tensors at the end", *report.largest]))
    return "\n\n".join(parts)


def _header(report: LoopReport, page: Page) -> list[str]:
    batches = sum(epoch.batches for epoch in report.epochs)
    counts = [_counted(batches, "batch", "batches")]
    if report.kind == FIT:
        counts.insert(0, _counted(len(report.epochs), "epoch", "epochs"))
    if report.epochs and not report.epochs[-1].ended:
        counts.append("the last epoch not ended" if report.kind == FIT else "not ended")
    lines = page.wrapped(f"Memory of {report.kind}: ", ", ".join(counts))
    for device in report.devices:
        source = ", ".join(filter(None, (device.source, device.precision)))
        lines += page.wrapped(f"  {device.name}  ", page.shown(source))
    for note in report.notes:
        lines += page.wrapped("  note: ", page.shown(note))
    return lines


def _device(report: LoopReport, device: str, page: Page) -> list[str]:
    found = report.peak(device)
    if found is None:
        source = next(each for each in report.devices if each.name == device)
        reason = source.missing.get("peak", "nothing ran")
        lines = page.wrapped(f"{device}  ", f"peak n/a: {page.shown(reason)}")
    else:
        nbytes, epoch = found
        lines = page.wrapped(
            f"{device}  ", f"peak {exact_size(nbytes)} {_when(report, epoch, device, nbytes)}"
        )
    if report.kind == FIT and any(device in epoch.devices for epoch in report.epochs):
        lines += _table(report.epochs, device, page, has_peaks=found is not None)
    for growth in report.growth.get(device, ()):
        rate = size(round(growth.nbytes))
        looked = _counted(growth.count, growth.per, _plural(growth.per))
        lines += page.wrapped(
            "  ", f"grows by {rate} per {growth.per}, seen over {looked}: {_ADVICE[report.kind]}", 2
        )
    return lines


def _when(report: LoopReport, epoch: Epoch, device: str, nbytes: int) -> str:
    level = epoch.devices.get(device)
    if level is not None and level.peak == nbytes:
        where = "between batches" if level.batches is None else f"in {_batch(level)}"
    else:
        level = epoch.validation[device]
        where = "in validation" if level.batches is None else f"in {_batch(level)} of validation"
    of = f" of epoch {epoch.number + 1}" if report.kind == FIT else ""
    return f"{where}{of}"


def _table(epochs: Sequence[Epoch], device: str, page: Page, *, has_peaks: bool) -> list[str]:
    validated = has_peaks and any(device in epoch.validation for epoch in epochs)
    titles = ["Epoch", "Batches", "Peak", "In batch", "At the end", "Change"]
    if validated:
        titles.insert(4, "Validation peak")
    rows = [titles]
    before: int | None = None
    for epoch in epochs:
        level = epoch.devices.get(device)
        if level is None:
            continue
        row = [
            str(epoch.number + 1) + ("" if epoch.ended else "*"),
            str(epoch.batches),
            size(_known(level.peak)),
            _numbers(level),
            size(_known(level.allocated)),
            "" if before is None else size(level.allocated - before, signed=True),
        ]
        if validated:
            validation = epoch.validation.get(device)
            row.insert(4, "" if validation is None else size(_known(validation.peak)))
        rows.append(row)
        before = level.allocated if level.allocated >= 0 else None
    if not has_peaks:
        rows = [[*row[:2], *row[4:]] for row in rows]
    lines = aligned(rows, (True,) * len(rows[0]), 2)
    hidden = len(lines) - 1 - _MOST_ROWS
    if hidden > 0:
        lines[_MOST_ROWS - _LAST_ROWS + 1 : -_LAST_ROWS] = [f"    ({hidden} more epochs)"]
    return ruled(lines, page, 2)


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
