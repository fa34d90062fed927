"""Tables of roles, of tensors, and of a ledger as a tree in which parts add up to each figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorlens.records.ledger import FIGURES, Ledger, UnnamedBlock
from tensorlens.records.names import readable_name
from tensorlens.records.tensors import SourceLine, TensorRecord
from tensorlens.render.blocks import (
    HTML_MEDIA,
    NO_BREAK,
    Cell,
    Column,
    Note,
    Row,
    Section,
    Table,
    Tone,
)
from tensorlens.render.figures import LeftOut, bar, counted, more_rows, share, size, size_cell
from tensorlens.render.pictures import role_colour
from tensorlens.render.shown import View
from tensorlens.render.source import model_place, place, printable
from tensorlens.tensors.difference import LedgerChange, RoleChange
from tensorlens.tensors.present.inventory import DeviceInventory, TensorRow

_OPENING = 20
"""Tensors that a page shows first."""
_NAMELESS = "(no name)"
_SHAPE_WIDTH = 28
_BORN_WIDTH = 32


def field(tensor: TensorRecord, name: str) -> str | int | None:
    """Return a tensor's field for a table of data: shapes as ``(3, 4)``, names joined."""
    value = getattr(tensor, name)
    if name == "names":
        return " = ".join(value)
    return value if value is None or isinstance(value, int) else str(value)


def role_table(device: DeviceInventory) -> Table:
    """Return the table of a device's roles."""
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
    """Return the table of roles before and after."""
    columns = (Column("Role", "text"), Column("Before"), Column("After"), Column("Change"))
    rows = (
        (each.role, size(each.before), size(each.after), size(each.change, signed=True))
        for each in roles
    )
    return Table(columns, tuple(rows))


def tensor_table(
    rows: Sequence[TensorRow], hidden: Sequence[LeftOut], view: View, kind: str = ""
) -> Table:
    """Return a table of tensors, with texts on those left out.

    Args:
        rows: tensors to show.
        hidden: tensors left out.
        view: how fully to show them.
        kind: kind of change of the rows; empty for a snapshot.
    """
    columns = [
        Column("Name", "name", in_full=view.verbose),
        Column("Role", "text"),
        Column("Type", "text", rank=0),
        Column("Shape", "text", rank=1, most=_SHAPE_WIDTH),
    ]
    if kind == "grown":
        columns += [Column("Before"), Column("After")]
    columns.append(Column("Change" if kind else "Size", tip="Bytes of the whole storage"))
    if not view.verbose:
        # a verbose report has the births below the row
        columns += [
            Column("Born", "line", rank=2, most=_BORN_WIDTH, only=("text",)),
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
    tone: Tone = "peak" if not kind else "release" if row.change < 0 else "growth"
    text = size(row.change, signed=bool(kind))
    yield Cell(text, bar=bar(abs(row.change), largest), tone=tone)


def _births(row: TensorRow) -> tuple[str, str, str]:
    """Return a tensor's line in short, the model's if known, then both its lines in full."""
    born, model = row.first.born, row.first.model_line
    if row.lines > 1:
        several = counted(row.lines, "line")
        return several, several, _place(model)
    short = model_place(model) if model else place(born) if born else ""
    return short, _place(born), _place(model)


def _place(line: SourceLine | None) -> str:
    return place(line, function=True) if line else ""


def _remarks(row: TensorRow, view: View) -> Iterator[str]:
    """Yield the remarks below a row."""
    first = row.first
    if len(first.names) > 1:
        yield "= " + " = ".join(name for name in first.names if name != row.name)
    if row.after and not row.before and row.nbytes != row.after:
        # an expanded tensor shows more bytes than its storage has
        word = "of" if row.nbytes < row.after else "from"
        storages = "a storage" if row.count == 1 else f"{row.count:,} storages"
        yield f"{size(row.nbytes)} {word} {storages} of {size(row.after)}"
    if first.note:
        yield first.note
    if first.held_by:
        yield f"held by {first.held_by}"
    if view.verbose:
        yield from _verbose_remarks(row)
    for alias in row.aliases:
        yield f"shared by {alias.name}  {alias.shape}{_layout(alias)}"


def _verbose_remarks(row: TensorRow) -> Iterator[str]:
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


_TREE = (
    ("driver_total", 0, "driver total"),
    ("free", 1, "free"),
    ("driver_used", 1, "in use"),
    ("other", 2, "other"),
    ("reserved", 2, "reserved"),
    ("cached", 3, "cached"),
    ("allocated", 3, "allocated"),
    ("named", 4, "named"),
    ("unnamed", 4, "unnamed"),
)
"""Figure, depth and label of the ledger's rows."""
_HOST_REMARKS = {
    "other": "other processes and the kernel",
    "reserved": "the process's resident set",
}
_FREE = "What the driver has not handed out to anyone: driver total less in use."
_MAX_BLOCKS = 5
"""Groups of unnamed blocks that are listed."""


def ledger_table(ledger: Ledger, view: View) -> Section:
    """Return a device's ledger as a balance sheet: each figure below the one it is part of."""
    figures = {name: getattr(ledger, name) for name in FIGURES} | {"free": _free(ledger)}
    whole = max(max(nbytes or 0, 0) for nbytes in figures.values())
    remarks = {"unnamed": _unnamed(ledger)}
    if ledger.device.rpartition("/")[2] == "cpu":
        remarks |= _HOST_REMARKS
    explanations = {**ledger.explanations, "free": _FREE}
    rows = []
    for figure, depth, label in _TREE:
        if figure == "free" and figures[figure] is None:
            continue
        parts = [part for part in ledger.parts if part.of == figure]
        explained = [f"{each.label}: {each.explanation}" for each in parts if each.explanation]
        # a part is not separated from its size
        texts = [
            f"{printable(each.label)} {size(each.nbytes)}".replace(" ", NO_BREAK) for each in parts
        ]
        explanation = explanations.get(figure, "")
        details = [*filter(None, (explanation, *explained))] if view.explain else []
        if figure == "unnamed":
            details += _unnamed_blocks(ledger, view)
        cells = (
            Cell(label, depth=depth, tip=explanation),
            size_cell(figures[figure], whole),
            Cell(", ".join(filter(None, (*texts, remarks.get(figure)))), tip="; ".join(explained)),
        )
        rows.append(Row(cells, tuple(details)))
    columns = (Column("Ledger", "text"), Column("Size"), Column("", "prose"))
    return _with_reasons(Table(columns, tuple(rows)), unknown_figures({"": ledger}))


def ledger_changes(change: LedgerChange) -> Section:
    """Return the changes of a device's ledger."""
    columns = (Column("Ledger", "text"), Column("Before"), Column("After"), Column("Change"))
    rows = tuple(
        Row(
            (
                Cell(label, depth=depth),
                *(size(getattr(each, figure, None)) for each in (change.before, change.after)),
                size(change.change(figure), signed=True),
            )
        )
        for figure, depth, label in _TREE
        if figure != "free"
    )
    before, after = unknown_figures({"": change.before}), unknown_figures({"": change.after})
    both = {"before: ": change.before, "after: ": change.after}
    return _with_reasons(Table(columns, rows), before if before == after else unknown_figures(both))


def _with_reasons(table: Table, reasons: Sequence[str]) -> Section:
    return Section((table, *(Note(each, "soft") for each in reasons)))


def unknown_figures(ledgers: Mapping[str, Ledger | None]) -> tuple[str, ...]:
    """Return the reasons for figures that read ``n/a``, equal reasons together.

    Args:
        ledgers: prefix (``before: ``) to a ledger, or to None if there is none.
    """
    labels = {figure: label for figure, _, label in _TREE}
    texts = []
    for when, ledger in ledgers.items():
        if ledger is None:
            texts.append(f"n/a: {when}this device was not looked at")
            continue
        reasons: dict[str, list[str]] = {}
        for figure in FIGURES:
            if getattr(ledger, figure) is None:
                reason = printable(ledger.missing.get(figure, "no reason was given"))
                reasons.setdefault(reason, []).append(labels[figure])
        for part in ledger.parts:
            if part.nbytes is None:
                reason = ledger.missing.get(part.key) or part.explanation or "no reason was given"
                reasons.setdefault(printable(reason), []).append(printable(part.label))
        texts += [f"n/a: {when}{', '.join(names)}: {why}" for why, names in reasons.items()]
    return tuple(texts)


def _unnamed_blocks(ledger: Ledger, view: View) -> list[str]:
    """Return a text for each of the largest groups of equal unnamed blocks, and one for the rest.

    A verbose view lists every block that the ledger knows, with address and stack.
    """
    is_verbose = view.verbose
    groups: dict[object, list[UnnamedBlock]] = {}
    for number, block in enumerate(sorted(ledger.blocks, key=lambda block: -block.nbytes)):
        groups.setdefault(number if is_verbose else (block.what, block.born), []).append(block)
    shown = sorted(groups.values(), key=lambda group: -sum(block.nbytes for block in group))
    shown = shown if is_verbose else shown[:_MAX_BLOCKS]
    texts = []
    for group in shown:
        block = group[0]
        what = printable(block.what) if block.what else ""
        born = f"born at {place(block.born, function=True)}" if block.born else ""
        address = f"at {block.address:#x}" if is_verbose and block.address else ""
        stack = " < ".join(place(line, function=True) for line in block.stack)
        above = f"called from {stack}" if is_verbose and stack else ""
        known = "  ".join(filter(None, (what, born, above, address)))
        many = f" in {len(group):,} blocks" if len(group) > 1 else ""
        nothing = f"nothing is known of {'them' if many else 'it'}"
        texts.append(f"{size(sum(each.nbytes for each in group))}{many}  {known or nothing}")
    if len(texts) < 2 and not is_verbose and not any(block.what for block in ledger.blocks):
        # the row of the figure says all of a single block
        return []
    count = ledger.block_count - sum(map(len, shown))
    if count > 0:
        listed = sum(block.nbytes for group in shown for block in group)
        rest = "" if ledger.unnamed is None else f", {size(ledger.unnamed - listed)}"
        texts.append(f"and {count:,} more{rest}")
    return texts


def _free(ledger: Ledger) -> int | None:
    if ledger.driver_total is None or ledger.driver_used is None:
        return None
    # Metal may hand out more than the recommended total
    return max(0, ledger.driver_total - ledger.driver_used)


def _unnamed(ledger: Ledger) -> str:
    count = max(ledger.block_count, len(ledger.blocks))
    if not count:
        return ""
    text = counted(count, "block")
    if not ledger.blocks:
        return text
    largest = max(ledger.blocks, key=lambda block: block.nbytes)
    born = f" born at {place(largest.born)}" if largest.born else ""
    return f"{text}, largest {size(largest.nbytes)}{born}"
