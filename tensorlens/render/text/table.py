"""Tables as text: the columns that fit, the width of each, and the lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from tensorlens.render.blocks import NO_BREAK, Cell, Column, Fold, Kind, Row, Table
from tensorlens.render.source import clipped, width
from tensorlens.render.text.page import GAP, Page, distinct_names, padded

INDENT = 2
_DETAIL_INDENT = 6
"""Indent of the lines below a row."""
_PART_INDENT = 2
"""Indent of a part of the row above."""
_BLANK = "\ue000"
"""A blank that tabulate does not strip; its own switch for that is global."""
_USUAL_WIDTHS: Mapping[Kind, int] = {"name": 36, "line": 52, "code": 32, "source": 32, "prose": 30}
"""Width that each kind keeps as long as other columns can be left out."""
_LEAST_WIDTHS: Mapping[Kind, int] = {"name": 12, "line": 22, "code": 8, "source": 8, "prose": 20}
"""Width that each kind keeps if no other column can be left out."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of tables with one layout."""

    numbers: tuple[int, ...]
    """Numbers of the columns that are shown."""
    widths: Mapping[int, int]
    """Column to its width, for those that can be shortened."""
    left_out: tuple[str, ...]
    """Titles of the columns that do not fit."""


def common_layout(tables: Sequence[Table], page: Page) -> Layout:
    """Return the common layout of tables with the same columns."""
    columns = tables[0].columns
    shown = [
        number for number, column in enumerate(columns) if not column.only or "text" in column.only
    ]
    texts = [each for table in tables for each in _texts(table, page)]
    full = {
        number: _column_width(columns[number], [row[number] for row in texts]) for number in shown
    }
    # columns that are empty in all rows are left out
    nothing = f" {page.glyphs.bar}"
    has_text = {number: any(row[number].strip(nothing) for row in texts) for number in shown}
    shown = [each for each in shown if has_text[each] or columns[each].rank is None]
    free = page.width - _indent(tables[0])
    fitting = _columns_that_fit(shown, columns, full, free)
    # a column without a title is an aside
    titles = (page.shown(columns[each].title) for each in shown if each not in fitting)
    left_out = tuple(title for title in titles if title)
    return Layout(tuple(fitting), _elastic_widths(fitting, columns, full, free), left_out)


def _columns_that_fit(
    shown: Sequence[int], columns: Sequence[Column], full: Mapping[int, int], free: int
) -> list[int]:
    """Return the columns that fit."""

    def fits(numbers: Sequence[int]) -> bool:
        source = max((columns[each].beside for each in numbers), default=0)
        least = {**_USUAL_WIDTHS, "source": source} if source else _USUAL_WIDTHS
        return _taken(numbers, columns, full, least) <= free

    spare = sorted(
        (columns[each].rank or 0, each) for each in shown if columns[each].rank is not None
    )
    kept, gone = [*shown], list[int]()
    while spare and not fits(kept):
        gone.append(spare.pop(0)[1])
        kept.remove(gone[-1])
    # without a wide column, another may fit again
    for number in reversed(gone):
        if fits([*kept, number]):
            kept.append(number)
    return sorted(kept)


def _column_width(column: Column, texts: Sequence[str]) -> int:
    widest = max(map(width, texts))
    return max(width(column.title), widest if column.most is None else min(widest, column.most))


def _indent(table: Table) -> int:
    return 0 if table.is_wide else INDENT


def _taken(
    shown: Sequence[int],
    columns: Sequence[Column],
    full: Mapping[int, int],
    least: Mapping[Kind, int],
) -> int:
    widths = (min(full[each], least.get(columns[each].kind, full[each])) for each in shown)
    return sum(widths) + GAP * (len(shown) - 1)


def _elastic_widths(
    shown: Sequence[int], columns: Sequence[Column], full: Mapping[int, int], free: int
) -> dict[int, int]:
    """Return the width of each column that can be shortened."""
    elastic = [each for each in shown if columns[each].kind in _LEAST_WIDTHS]
    fits = _taken(shown, columns, full, _USUAL_WIDTHS) <= free
    begin = _USUAL_WIDTHS if fits else _LEAST_WIDTHS
    widths = {each: min(full[each], begin[columns[each].kind]) for each in elastic}
    extra = free - _taken(shown, columns, full, begin)
    for each in elastic:
        more = max(0, min(extra, full[each] - widths[each]))
        widths[each] += more
        extra -= more
    return widths


def lines(table: Table, layout: Layout, page: Page) -> list[str]:
    """Return a table with a rule below its titles, and the details below each row."""
    columns = [table.columns[number] for number in layout.numbers]
    rows = table.all_rows
    texts = list(_texts(table, page))
    cells = [
        _shortened(
            column, [row[number] for row in texts], _counts(rows, number), layout, number, page
        )
        for number, column in zip(layout.numbers, columns, strict=True)
    ]
    titles = [_title(column, page) for column in columns]
    fitted = list(zip(*cells, strict=True))
    indent = _indent(table)
    drawn, hanging = _aligned(titles, fitted, columns, indent, page)
    longest = min(page.width, max(map(width, drawn)))
    rule = " " * indent + page.glyphs.rule * (longest - indent)
    result = [drawn[0], rule]
    for index, (row, line, more) in enumerate(zip(rows, drawn[1:], hanging, strict=True)):
        result += [rule] if isinstance(row, Row) and row.state == "sum" else []
        if isinstance(row, Fold) and not _is_code(table):
            line = " " * _DETAIL_INDENT + _folded(row, page)
        result += [line, *more]
        cut = (
            texts[index][number]
            for number, column, shown in zip(layout.numbers, columns, fitted[index], strict=True)
            if column.in_full and shown != texts[index][number]
        )
        result += _details(row, page, cut)
    return result


def table_footer(table: Table, page: Page) -> list[str]:
    """Return the texts on rows that are left out, and the remark."""
    result = []
    for text in table.rest:
        result += page.wrapped(f"{' ' * INDENT}{page.glyphs.ellipsis} ", page.shown(text))
    return result + (page.wrapped(" " * INDENT, page.shown(table.remark)) if table.remark else [])


def missing(layout: Layout, page: Page) -> list[str]:
    """Return the text on columns that did not fit."""
    if not layout.left_out:
        return []
    titles = ", ".join(layout.left_out)
    what = "it" if len(layout.left_out) == 1 else "them"
    text = f"Left out to fit {page.width} characters: {titles}."
    text += f" A wider terminal, .html and .csv show {what}."
    return page.wrapped(" " * INDENT, text)


def full_width(table: Table, page: Page) -> int:
    """Return the width of a table of which nothing is shortened."""
    texts = [[page.shown(column.title) for column in table.columns], *_texts(table, page)]
    widest = [max(map(width, column)) for column in zip(*texts, strict=True)]
    return INDENT + sum(widest) + GAP * (len(widest) - 1)


def _texts(table: Table, page: Page) -> Iterator[list[str]]:
    for row in table.all_rows:
        if isinstance(row, Fold):
            others = [""] * (len(table.columns) - 1)
            yield [*others, f"{page.glyphs.bar} {_folded(row, page)}" if _is_code(table) else ""]
            continue
        columns = enumerate(table.columns)
        yield [_text(row.cell(number), column.kind, page) for number, column in columns]


def _folded(fold: Fold, page: Page) -> str:
    return f"{page.glyphs.ellipsis} {page.shown(fold.text)}"


def _is_code(table: Table) -> bool:
    return table.columns[-1].kind == "source"


def _text(cell: Cell, kind: Kind, page: Page) -> str:
    """Return the text of a cell in full length."""
    if kind == "prose":
        return NO_BREAK.join(map(page.shown, cell.text.split(NO_BREAK)))
    text = page.shown(cell.text)
    if kind == "source":
        return f"{page.glyphs.bar} {text}".rstrip()
    text = f"{page.glyphs.of(cell.mark)} {text}" if cell.mark else text
    return f"{_BLANK * (_PART_INDENT * cell.depth)}{text}{_times(cell)}"


def _times(cell: Cell) -> str:
    return f" x {cell.count:,}" if cell.count > 1 else ""


def _counts(rows: Sequence[Row | Fold], number: int) -> list[str]:
    return [_times(row.cell(number)) if isinstance(row, Row) else "" for row in rows]


def _title(column: Column, page: Page) -> str:
    title = page.shown(column.title)
    return f"{page.glyphs.bar} {title}" if column.kind == "source" else title


def _shortened(
    column: Column,
    texts: Sequence[str],
    counts: Sequence[str],
    layout: Layout,
    number: int,
    page: Page,
) -> list[str]:
    """Return the cells of a column, shortened to fit; the count after a name is never cut."""
    dots = page.glyphs.ellipsis
    room = layout.widths.get(number)
    if column.most is not None:
        room = column.most if room is None else min(room, column.most)
    if room is None or column.kind == "prose":
        return list(texts)
    if column.kind in ("code", "source"):
        return [clipped(each, room, dots) for each in texts]
    names = [each.removesuffix(count) for each, count in zip(texts, counts, strict=True)]
    begins = [each[: len(each) - len(each.lstrip(_BLANK))] for each in names]
    widths = [room - len(count) - len(begin) for count, begin in zip(counts, begins, strict=True)]
    bare = distinct_names([each.lstrip(_BLANK) for each in names], widths, dots)
    return ["".join(each) for each in zip(begins, bare, counts, strict=True)]


def _aligned(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: Sequence[Column],
    indent: int,
    page: Page,
) -> tuple[list[str], list[list[str]]]:
    """Return the lines of titles and rows, and for each row the further lines of its prose."""
    is_prose = columns[-1].kind == "prose"
    upright = [[*row[:-1], ""] if is_prose else row for row in rows]
    # titles are an ordinary row because tabulate pads headers by two more columns
    drawn = tabulate(
        [[each or _BLANK for each in row] for row in (titles, *upright)],
        tablefmt="plain",
        disable_numparse=True,
        colalign=["right" if each.kind == "figure" else "left" for each in columns],
    ).splitlines()
    drawn = [" " * indent + each.replace(_BLANK, " ") for each in drawn]
    hanging: list[list[str]] = [[] for _ in rows]
    if is_prose:
        cells = list(zip(titles, *upright, strict=True))[:-1]
        begin = indent + sum(max(map(width, column)) + GAP for column in cells)
        for index, row in enumerate(rows):
            start = padded(drawn[index + 1].rstrip(), begin)
            wrapped = page.wrapped(start, row[-1], begin) if row[-1] else [start]
            wrapped = [each.replace(NO_BREAK, " ") for each in wrapped]
            drawn[index + 1], hanging[index] = wrapped[0], wrapped[1:]
    return [each.rstrip() for each in drawn], hanging


def _details(row: Row | Fold, page: Page, cut: Iterable[str]) -> list[str]:
    """Return the lines below a row, first the cells that were cut."""
    if isinstance(row, Fold):
        return []
    depth = max((cell.depth for cell in row.cells if isinstance(cell, Cell)), default=0)
    indent = " " * (_DETAIL_INDENT + _PART_INDENT * depth)
    texts = (*cut, *map(page.shown, row.details))
    told = (page.wrapped(indent, each, len(indent) + _PART_INDENT) for each in texts)
    return [line for each in told for line in each]
