"""Tables as text: the columns that fit, the width of each, and the lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from tensorlens.render.blocks import NO_BREAK, Cell, Column, Fold, Kind, Row, Table
from tensorlens.render.source import clipped, width
from tensorlens.render.text.page import GAP, Page, distinct_names, padded

INDENT = 2
_UNDER = 6
"""Indent of the lines below a row."""
_STEP = 2
"""Indent of a part of the row above."""
_BLANK = "\ue000"
"""A blank that tabulate does not strip; its own switch for that is global."""
_ENOUGH: Mapping[Kind, int] = {"name": 36, "line": 52, "code": 32, "source": 32, "prose": 30}
"""Width that each kind keeps as long as other columns can be left out."""
_LEAST: Mapping[Kind, int] = {"name": 12, "line": 22, "code": 8, "source": 8, "prose": 20}
"""Width that each kind keeps if no other column can be left out."""
_ROOMY = "A wider terminal, .html and .csv show {}."


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of tables with one layout."""

    places: tuple[int, ...]
    """Numbers of the columns that are shown."""
    rooms: Mapping[int, int]
    """Column to its width, for those that can be shortened."""
    left_out: tuple[str, ...]
    """Titles of the columns that do not fit."""


def layout(tables: Sequence[Table], page: Page) -> Layout:
    """Return the common layout of tables with the same columns."""
    columns = tables[0].columns
    shown = [
        place for place, column in enumerate(columns) if not column.only or "text" in column.only
    ]
    texts = [each for table in tables for each in _texts(table, page)]
    natural = {place: _natural(columns[place], [row[place] for row in texts]) for place in shown}
    # columns that are empty in all rows are left out
    nothing = f" {page.glyphs.bar}"
    has_text = {place: any(row[place].strip(nothing) for row in texts) for place in shown}
    shown = [each for each in shown if has_text[each] or columns[each].rank is None]
    free = page.width - _indent(tables[0])
    fitting = _fitting(shown, columns, natural, free)
    # a column without a title is an aside
    titles = (page.shown(columns[each].title) for each in shown if each not in fitting)
    left_out = tuple(title for title in titles if title)
    return Layout(tuple(fitting), _rooms(fitting, columns, natural, free), left_out)


def _fitting(
    shown: Sequence[int], columns: Sequence[Column], natural: Mapping[int, int], free: int
) -> list[int]:
    """Return the columns that fit."""

    def fits(places: Sequence[int]) -> bool:
        source = max((columns[each].beside for each in places), default=0)
        least = {**_ENOUGH, "source": source} if source else _ENOUGH
        return _taken(places, columns, natural, least) <= free

    spare = sorted(
        (columns[each].rank or 0, each) for each in shown if columns[each].rank is not None
    )
    kept, gone = [*shown], list[int]()
    while spare and not fits(kept):
        gone.append(spare.pop(0)[1])
        kept.remove(gone[-1])
    # without a wide column, another may fit again
    for place in reversed(gone):
        if fits([*kept, place]):
            kept.append(place)
    return sorted(kept)


def _natural(column: Column, texts: Sequence[str]) -> int:
    widest = max(map(width, texts))
    return max(width(column.title), widest if column.most is None else min(widest, column.most))


def _indent(table: Table) -> int:
    return 0 if table.is_wide else INDENT


def _taken(
    shown: Sequence[int],
    columns: Sequence[Column],
    natural: Mapping[int, int],
    least: Mapping[Kind, int],
) -> int:
    rooms = (min(natural[each], least.get(columns[each].kind, natural[each])) for each in shown)
    return sum(rooms) + GAP * (len(shown) - 1)


def _rooms(
    shown: Sequence[int], columns: Sequence[Column], natural: Mapping[int, int], free: int
) -> dict[int, int]:
    """Return the width of each column that can be shortened."""
    elastic = [each for each in shown if columns[each].kind in _LEAST]
    fits = _taken(shown, columns, natural, _ENOUGH) <= free
    begin = _ENOUGH if fits else _LEAST
    rooms = {each: min(natural[each], begin[columns[each].kind]) for each in elastic}
    extra = free - _taken(shown, columns, natural, begin)
    for each in elastic:
        more = max(0, min(extra, natural[each] - rooms[each]))
        rooms[each] += more
        extra -= more
    return rooms


def lines(table: Table, found: Layout, page: Page) -> list[str]:
    """Return a table with a rule below its titles, and the details below each row."""
    columns = [table.columns[place] for place in found.places]
    rows = table.all_rows
    texts = list(_texts(table, page))
    cells = [
        _fitted(column, [row[place] for row in texts], _counts(rows, place), found, place, page)
        for place, column in zip(found.places, columns, strict=True)
    ]
    titles = [_title(column, page) for column in columns]
    fitted = list(zip(*cells, strict=True))
    indent = _indent(table)
    drawn, hanging = _aligned(titles, fitted, columns, indent, page)
    longest = min(page.width, max(map(width, drawn)))
    rule = " " * indent + page.glyphs.rule * (longest - indent)
    result = [drawn[0], rule]
    for number, (row, line, more) in enumerate(zip(rows, drawn[1:], hanging, strict=True)):
        result += [rule] if isinstance(row, Row) and row.state == "sum" else []
        if isinstance(row, Fold) and not _is_code(table):
            line = " " * _UNDER + _folded(row, page)
        result += [line, *more]
        cut = (
            texts[number][place]
            for place, column, shown in zip(found.places, columns, fitted[number], strict=True)
            if column.in_full and shown != texts[number][place]
        )
        result += _details(row, page, cut)
    return result


def table_footer(table: Table, page: Page) -> list[str]:
    """Return the texts on rows that are left out, and the remark."""
    result = []
    for text in table.rest:
        result += page.wrapped(f"  {page.glyphs.ellipsis} ", page.shown(text))
    return result + (page.wrapped(" " * INDENT, page.shown(table.remark)) if table.remark else [])


def missing(found: Layout, page: Page) -> list[str]:
    """Return the text on columns that did not fit."""
    if not found.left_out:
        return []
    titles = ", ".join(found.left_out)
    what = "it" if len(found.left_out) == 1 else "them"
    text = f"Left out to fit {page.width} characters: {titles}. {_ROOMY.format(what)}"
    return page.wrapped(" " * INDENT, text)


def natural_width(table: Table, page: Page) -> int:
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
        yield [_text(row.cell(place), column.kind, page) for place, column in columns]


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
    return f"{_BLANK * (_STEP * cell.depth)}{text}{_times(cell)}"


def _times(cell: Cell) -> str:
    return f" x {cell.count:,}" if cell.count > 1 else ""


def _counts(rows: Sequence[Row | Fold], place: int) -> list[str]:
    return [_times(row.cell(place)) if isinstance(row, Row) else "" for row in rows]


def _title(column: Column, page: Page) -> str:
    title = page.shown(column.title)
    return f"{page.glyphs.bar} {title}" if column.kind == "source" else title


def _fitted(
    column: Column,
    texts: Sequence[str],
    counts: Sequence[str],
    found: Layout,
    place: int,
    page: Page,
) -> list[str]:
    """Return the cells of a column, shortened to fit; the count after a name is never cut."""
    dots = page.glyphs.ellipsis
    room = found.rooms.get(place)
    if column.most is not None:
        room = column.most if room is None else min(room, column.most)
    if room is None or column.kind == "prose":
        return list(texts)
    if column.kind in ("code", "source"):
        return [clipped(each, room, dots) for each in texts]
    names = [each.removesuffix(count) for each, count in zip(texts, counts, strict=True)]
    begins = [each[: len(each) - len(each.lstrip(_BLANK))] for each in names]
    rooms = [room - len(count) - len(begin) for count, begin in zip(counts, begins, strict=True)]
    bare = distinct_names([each.lstrip(_BLANK) for each in names], rooms, dots)
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
        for place, row in enumerate(rows):
            start = padded(drawn[place + 1].rstrip(), begin)
            wrapped = page.wrapped(start, row[-1], begin) if row[-1] else [start]
            wrapped = [each.replace(NO_BREAK, " ") for each in wrapped]
            drawn[place + 1], hanging[place] = wrapped[0], wrapped[1:]
    return [each.rstrip() for each in drawn], hanging


def _details(row: Row | Fold, page: Page, cut: Iterable[str]) -> list[str]:
    """Return the lines below a row, first the cells that were cut."""
    if isinstance(row, Fold):
        return []
    depth = max((cell.depth for cell in row.cells if isinstance(cell, Cell)), default=0)
    indent = " " * (_UNDER + _STEP * depth)
    texts = (*cut, *map(page.shown, row.details))
    told = (page.wrapped(indent, each, len(indent) + _STEP) for each in texts)
    return [line for each in told for line in each]
