"""Presents the ranks of a job: the spread, the items of the rank that stands out, all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.jobs.report import ItemDifference, JobReport, OddRank
from tensorlens.records.names import readable_name
from tensorlens.render.blocks import Block, Cell, Column, Heading, Note, Row, Rows, Section, Table
from tensorlens.render.figures import size
from tensorlens.render.shown import View

TITLE = "the ranks of a job"


def blocks(report: JobReport, view: View) -> Sequence[Block]:
    """Return the spread over ranks, the rank that stands out, and all of them."""
    notes = (*_missing(report), *(Note(note, label="note") for note in report.notes))
    first: list[Block] = [Heading(_headline(report)), *notes, _spread(report)]
    shown: list[Block] = [Section(tuple(first))]
    if report.odd is not None and report.odd.items:
        shown.append(Section((_items(report, report.odd),), _items_title(report, report.odd)))
    shown.append(Section((_ranks(report),), "Ranks"))
    return shown


def rows(report: JobReport) -> Rows:
    """Return one row per rank."""
    names = _names(report)
    columns = ("rank", "device", *(name.replace(" ", "_") for name in names), "file")
    cells = (
        (each.rank, each.device, *(each.figures.get(name) for name in names), each.file)
        for each in report.ranks
    )
    return Rows(columns, cells, ("device", "file"))


def _headline(report: JobReport) -> str:
    count = len(report.ranks)
    of_all = f" of {report.world_size}" if report.world_size not in (None, count) else ""
    ranks = f"{count}{of_all} ranks" if count != 1 else f"1{of_all} rank"
    odd = report.odd
    of_stage = " of its stage" if _has_stages(report) else ""
    if odd is None:
        where = ", within each stage" if of_stage else ""
        return f"{ranks}: all have the same {report.spreads[0].figure}{where}"
    more = "more" if odd.difference > 0 else "less"
    by = size(abs(odd.difference))
    if count == 2:
        # one of two ranks cannot stand out
        by = f"{by} {more} {odd.figure} than rank {odd.other_rank}"
        return f"{ranks}: rank {odd.rank} has {by}"
    by = f"{by} {more} than the median{of_stage}"
    return f"{ranks}: rank {odd.rank} stands out, its {odd.figure} is {by}"


def _has_stages(report: JobReport) -> bool:
    return report.ranks[0].stage is not None


def _missing(report: JobReport) -> Iterator[Note]:
    if report.missing:
        ranks = ", ".join(map(str, report.missing))
        plural = "s" if len(report.missing) > 1 else ""
        yield Note(f"There is no record of rank{plural} {ranks}", "warning")


def _spread(report: JobReport) -> Table:
    columns = ("Least", "on rank", "Median", "Most", "on rank")
    rows = (
        (
            each.figure.capitalize() + ("" if each.stage is None else f", stage {each.stage}"),
            *(size(each.least), str(each.least_rank)),
            *(size(each.median), size(each.most), str(each.most_rank)),
        )
        for each in report.spreads
    )
    return Table((Column("Figure", "text"), *map(Column, columns)), tuple(rows))


def _items_title(report: JobReport, odd: OddRank) -> str:
    of_lines = ": what lines took above the level they began at" if report.item == "line" else ""
    return f"Rank {odd.rank} compared with rank {odd.other_rank}{of_lines}"


def _items(report: JobReport, odd: OddRank) -> Table:
    columns = (
        Column("Difference"),
        Column(f"Rank {odd.rank}", rank=1),
        Column(f"Rank {odd.other_rank}", rank=0),
        Column(report.item.capitalize(), "name" if report.item == "tensor" else "text"),
        *([Column("Line", "line")] if any(each.line for each in odd.items) else []),
    )
    rest = f"{odd.rest_count} more {report.item}s, {size(odd.rest, signed=True)}"
    rows = tuple(Row(_item(each)[: len(columns)]) for each in odd.items)
    return Table(columns, rows, rest=(rest,) if odd.rest_count else ())


def _item(item: ItemDifference) -> tuple[str | Cell, ...]:
    sizes = size(item.difference, signed=True), size(item.nbytes), size(item.other_nbytes)
    return *sizes, Cell(readable_name(item.name), count=item.count), item.line or "(no line known)"


def _ranks(report: JobReport) -> Table:
    names = _names(report)
    figures = [Column(name.capitalize()) for name in names]
    stage = [Column("Stage")] if _has_stages(report) else []
    columns = (Column("Rank"), *stage, *figures, Column("Device", "text"), Column("File", "text"))
    rows = (
        (
            str(each.rank),
            *([str(each.stage)] if stage else []),
            *(size(each.figures.get(name)) for name in names),
            each.device,
            each.file,
        )
        for each in report.ranks
    )
    return Table(columns, tuple(rows))


def _names(report: JobReport) -> list[str]:
    return [each.figure for each in report.spreads]
