"""Tables of tensors as text, the same in a snapshot and in what changed."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.census.present.inventory import Hidden, TensorRow
from tensorlens.records.tensors import TensorRecord
from tensorlens.render.figures import counted, size
from tensorlens.render.shortening import told_apart
from tensorlens.render.source import model_place, place, shortened, width
from tensorlens.render.text.page import GAP, Page, aligned, ruled

_NAMELESS = "(no name)"
_INDENT = 2
_UNDER = 6
_SHAPE_ROOM = 28
_BORN_MOST = 32
_BORN_LEAST = 18
_NAME_ROOM = 40
_NAME_LEAST = 12


def tensor_lines(
    rows: Sequence[TensorRow],
    hidden: Sequence[Hidden],
    page: Page,
    *,
    kind: str = "",
) -> list[str]:
    """Return a table of tensors and what it leaves out.

    Args:
        rows: what to show.
        hidden: what is not shown.
        page: where it is to fit.
        kind: the kind of change the rows show; empty for a snapshot's.
    """
    found = _table(rows, page, kind) if rows else []
    for each in hidden:
        nbytes = size(each.nbytes, signed=bool(kind))
        more = f"{each.count:,} more {counted(each.count).split()[1]}"
        found += page.wrapped(f"  {page.glyphs.ellipsis} ", f"{more}, {nbytes} ({each.why})")
    return found


def _table(rows: Sequence[TensorRow], page: Page, kind: str) -> list[str]:
    cells = _cells(rows, page, kind)
    names = [page.shown(row.name) or _NAMELESS for row in rows]
    counts = [f" x {row.count:,}" if row.count > 1 else "" for row in rows]
    births = [_born(row, page) for row in rows]
    longest = max(width(name + count) for name, count in zip(names, counts, strict=True))
    left_out = []
    free = page.width - _INDENT - _width_of(cells)
    if free < min(longest, _NAME_ROOM):
        # a name says more than a type
        cells = [[role, *others] for role, _, *others in cells]
        free = page.width - _INDENT - _width_of(cells)
        left_out.append("Type")
    room, born_room = _rooms(free, longest, max(map(width, births)))
    fitted = told_apart(names, [room - len(count) for count in counts], page.glyphs.ellipsis)
    texts = [name + count for name, count in zip(fitted, counts, strict=True)]
    columns = [["Name", *texts], *map(list, zip(*cells, strict=True))]
    shape = [title for title, *_ in columns].index("Shape")
    right = [index > shape for index in range(len(columns))]
    if born_room:
        short = told_apart(births, [born_room] * len(births), page.glyphs.ellipsis)
        columns.append(["Born", *short])
        right.append(False)
    lines = ruled(aligned(list(zip(*columns, strict=True)), right, _INDENT), page, _INDENT)
    found = lines[:2]
    for row, line, name, text in zip(rows, lines[2:], names, texts, strict=True):
        found.append(line)
        found += _remarks(row, page, cut=not text.startswith(name))
    if any(births) and not born_room:
        left_out.append("Born")
    if left_out:
        text = f"  Left out to fit {page.width} characters: {', '.join(left_out)}. "
        more = "verbose, .html and .csv" if left_out == ["Born"] else ".html and .csv"
        found += page.wrapped(text, f"A wider terminal, {more} show more.")
    return found


def _width_of(cells: Sequence[Sequence[str]]) -> int:
    return sum(max(map(width, column)) + GAP for column in zip(*cells, strict=True))


def _cells(rows: Sequence[TensorRow], page: Page, kind: str) -> list[list[str]]:
    """Return titles and cells of the columns that are always there, the name's aside."""
    before_after = ["Before", "After"] if kind == "grown" else []
    cells = [["Role", "Type", "Shape", *before_after, "Change" if kind else "Size"]]
    for row in rows:
        first = row.first
        shape = shortened(row.shape, _SHAPE_ROOM, page.glyphs.ellipsis)
        cells.append([page.shown(first.role), page.shown(first.dtype), shape, *_sizes(row, kind)])
    return cells


def _rooms(free: int, name: int, born: int) -> tuple[int, int]:
    """Return the room of the names and of the births, 0 for these where there is not enough.

    Args:
        free: columns that both have together.
        name: what the longest name wants.
        born: what the longest birth wants; 0 where there is none.
    """
    born_room = min(_BORN_MOST, born, free - GAP - min(name, _NAME_ROOM))
    if not born or born_room < min(_BORN_LEAST, born):
        return max(free, _NAME_LEAST), 0
    return max(free - max(born_room, len("Born")) - GAP, _NAME_LEAST), born_room


def _sizes(row: TensorRow, kind: str) -> list[str]:
    if kind == "grown":
        return [size(row.before), size(row.after), size(row.change, signed=True)]
    if kind:
        return [size(row.change, signed=True)]
    if row.is_whole:
        return [size(row.after)]
    # more is shown than there is where one element stands for many (expand)
    return [f"{size(row.nbytes)} {'of' if row.nbytes < row.after else 'from'} {size(row.after)}"]


def _born(row: TensorRow, page: Page) -> str:
    # a verbose report has it below the row, with the function
    born, model = row.first.born, row.first.model_line
    if page.view.verbose or (born is None and model is None):
        return ""
    return page.shown(model_place(model) if model else place(born) if born else "")


def _remarks(row: TensorRow, page: Page, *, cut: bool) -> list[str]:
    first, verbose = row.first, page.view.verbose
    texts = []
    if cut and verbose:
        texts.append(row.name)
    if len(first.names) > 1:
        texts.append("= " + " = ".join(name for name in first.names if name != row.name))
    texts += [first.note] if first.note else []
    texts += [f"held by {first.held_by}"] if first.held_by else []
    if verbose:
        texts += _everything(row)
    indent = " " * _UNDER
    found = [line for text in texts for line in page.wrapped(indent, page.shown(text), _UNDER + 2)]
    for alias in row.aliases:
        text = f"shared by {alias.name}  {alias.shape}{_layout(alias)}"
        found += page.wrapped(indent, page.shown(text), _UNDER + 2)
    return found


def _everything(row: TensorRow) -> list[str]:
    first = row.first
    texts = []
    if first.module:
        texts.append(f"made in {first.module}")
    if first.born:
        texts.append(f"born at {place(first.born, function=True)}")
    if first.model_line:
        texts.append(f"line of the model {place(first.model_line, function=True)}")
    if row.count == 1:
        texts.append(f"storage {first.storage:#x}{_layout(first)}")
    return texts


def _layout(tensor: TensorRecord) -> str:
    stride = f", stride {tensor.stride}" if tensor.stride is not None else ""
    return stride + (f", from element {tensor.offset:,}" if tensor.offset else "")
