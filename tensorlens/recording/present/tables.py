"""Tables of lines and modules, the same for a recording and for an estimate."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.recording.present.instants import LineRow
from tensorlens.recording.present.modules import ModuleRow
from tensorlens.render.blocks import Cell, Column, Row, Table
from tensorlens.render.figures import counted, size
from tensorlens.tensors.present.inventory import Hidden
from tensorlens.tensors.present.tables import share, sized

_OF_THE_MODEL = "A line of the model that the line above calls"


def more_rows(hidden: Hidden | None, what: str) -> tuple[str, ...]:
    """Return how many rows of a kind are not shown; nothing where all are."""
    if hidden is None:
        return ()
    why = f" ({hidden.why})" if hidden.why else ""
    return (f"{counted(hidden.count, f'more {what}')}, {size(hidden.nbytes)}{why}",)


def line_cells(row: LineRow) -> tuple[Cell, str]:
    """Return a line and its source; one of a model stands below the user's."""
    tip = _OF_THE_MODEL if row.is_model else ""
    return Cell(row.place.strip(), depth=int(row.is_model), tip=tip), row.source


def line_columns(has_source: bool) -> tuple[Column, ...]:
    """Return the columns of lines, and of their source where that is known."""
    source = (Column("Source", "code", rank=0),) if has_source else ()
    return (Column("Line", "line"), *source)


def line_table(rows: Sequence[LineRow], hidden: Hidden | None, whole: int, tip: str = "") -> Table:
    """Return what each line has of ``whole`` bytes."""
    columns = (
        Column("Size", tip=tip),
        Column("Share"),
        *line_columns(any(row.source for row in rows)),
    )
    cells = (
        (sized(row.nbytes, whole), share(row.nbytes, whole), *line_cells(row))[: len(columns)]
        for row in rows
    )
    return Table(columns, tuple(map(Row, cells)), rest=more_rows(hidden, "line"))


def module_table(
    rows: Sequence[ModuleRow], hidden: Hidden | None, whole: int, tip: str = ""
) -> Table:
    """Return what each module has of ``whole`` bytes."""
    return Table(
        (Column("Size", tip=tip), Column("Share"), Column("Module", "name")),
        tuple(
            Row(
                (
                    sized(row.nbytes, whole),
                    share(row.nbytes, whole),
                    Cell(row.path, count=row.count),
                )
            )
            for row in rows
        ),
        rest=more_rows(hidden, "module"),
    )
