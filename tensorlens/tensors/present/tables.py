"""Tables of roles and of tensors, the same wherever there are any."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensorlens.records.names import readable_name
from tensorlens.records.tensors import SourceLine, TensorRecord
from tensorlens.render.blocks import (
    HTML_MEDIA,
    Cell,
    Column,
    Row,
    Table,
    Tone,
)
from tensorlens.render.cells import LeftOut, bar, more_rows, share
from tensorlens.render.figures import counted, size
from tensorlens.render.pictures import role_colour
from tensorlens.render.source import model_place, place, printable
from tensorlens.render.view import View
from tensorlens.tensors.difference import RoleChange
from tensorlens.tensors.present.inventory import DeviceInventory, TensorRow

_OPENING = 20
"""So many tensors a page begins with."""
_NAMELESS = "(no name)"
_SHAPE_ROOM = 28
_BORN_ROOM = 32


def field(tensor: TensorRecord, name: str) -> str | int | None:
    """Return a field of a tensor for a table of data: shapes as ``(3, 4)``, names joined."""
    value = getattr(tensor, name)
    if name == "names":
        return " = ".join(value)
    return value if value is None or isinstance(value, int) else str(value)


def role_table(device: DeviceInventory) -> Table:
    """Return how much each role takes on a device."""
    columns = (Column("Role", "text"), Column("Tensors"), Column("Size"), Column("Share"))
    whole = device.nbytes
    rows = (
        (
            Cell(role, swatch=role_colour(role)),
            f"{count:,}",
            size(nbytes),
            Cell(share(nbytes, whole), bar=bar(nbytes, whole)),
        )
        for role, count, nbytes in device.roles
    )
    return Table(columns, tuple(map(Row, rows)))


def role_change_table(roles: Sequence[RoleChange]) -> Table:
    """Return how much each role takes before and after."""
    columns = (Column("Role", "text"), Column("Before"), Column("After"), Column("Change"))
    rows = (
        (each.role, size(each.before), size(each.after), size(each.change, signed=True))
        for each in roles
    )
    return Table(columns, tuple(rows))


def tensor_table(
    rows: Sequence[TensorRow], hidden: Sequence[LeftOut], view: View, kind: str = ""
) -> Table:
    """Return a table of tensors and what it leaves out.

    Args:
        rows: what to show.
        hidden: what is not shown.
        view: how fully.
        kind: the kind of change that the rows show; empty for a snapshot's.
    """
    columns = [
        Column("Name", "name", in_full=view.verbose),
        Column("Role", "text"),
        Column("Type", "text", rank=0),
        Column("Shape", "text", rank=1, most=_SHAPE_ROOM),
    ]
    if kind == "grown":
        columns += [Column("Before"), Column("After")]
    columns.append(Column("Change" if kind else "Size", tip="Bytes of the whole storage"))
    if not view.verbose:
        # a verbose report has them below the row
        columns += [
            Column("Born", "line", rank=2, most=_BORN_ROOM, only=("text",)),
            Column("Born", "line", rank=1, only=HTML_MEDIA, tip="The line that allocated it"),
            Column("Line of the model", "line", rank=1, only=HTML_MEDIA),
        ]
    largest = max((abs(row.change) for row in rows), default=0)
    cells = (
        (
            Cell(printable(readable_name(row.name)) or _NAMELESS, count=row.count),
            *(row.first.role, row.first.dtype, row.shape),
            *_sizes(row, kind, largest),
            *(() if view.verbose else _births(row)),
        )
        for row in rows
    )
    return Table(
        tuple(columns),
        tuple(Row(each, tuple(_remarks(row, view))) for each, row in zip(cells, rows, strict=True)),
        rest=tuple(
            text for each in hidden for text in more_rows(each, "tensor", signed=bool(kind))
        ),
        opening=_OPENING if len(rows) > _OPENING else 0,
    )


def _sizes(row: TensorRow, kind: str, largest: int) -> Iterator[str | Cell]:
    if kind == "grown":
        yield from (size(row.before), size(row.after))
    tone: Tone = "peak"
    text = size(row.change, signed=bool(kind))
    if kind:
        tone = "release" if row.change < 0 else "growth"
    yield Cell(text, bar=bar(abs(row.change), largest), tone=tone)


def _births(row: TensorRow) -> tuple[str, str, str]:
    """Return which line allocated a tensor, in short for a text."""
    born, model = row.first.born, row.first.model_line
    if row.lines > 1:
        several = counted(row.lines, "line")
        return several, several, _place(model)
    short = model_place(model) if model else place(born) if born else ""
    return short, _place(born), _place(model)


def _place(line: SourceLine | None) -> str:
    return place(line, function=True) if line else ""


def _remarks(row: TensorRow, view: View) -> Iterator[str]:
    """Give what is to be said below a row."""
    first = row.first
    if len(first.names) > 1:
        yield "= " + " = ".join(name for name in first.names if name != row.name)
    if row.after and not row.before and not row.is_whole:
        # more is shown than there is where one element stands for many (expand)
        word = "of" if row.nbytes < row.after else "from"
        storages = "a storage" if row.count == 1 else f"{row.count:,} storages"
        yield f"{size(row.nbytes)} {word} {storages} of {size(row.after)}"
    if first.note:
        yield first.note
    if first.held_by:
        yield f"held by {first.held_by}"
    if view.verbose:
        yield from _everything(row)
    for alias in row.aliases:
        yield f"shared by {alias.name}  {alias.shape}{_layout(alias)}"


def _everything(row: TensorRow) -> Iterator[str]:
    first = row.first
    if first.module:
        yield f"made in {first.module}"
    if first.born:
        yield f"born at {_place(first.born)}"
    if first.model_line:
        yield f"line of the model {_place(first.model_line)}"
    if row.count == 1:
        yield f"storage {first.storage:#x}{_layout(first)}"


def _layout(tensor: TensorRecord) -> str:
    stride = f", stride {tensor.stride}" if tensor.stride is not None else ""
    return stride + (f", from element {tensor.offset:,}" if tensor.offset else "")
