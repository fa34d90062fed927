"""Recordings as text: per device the peak, what was resident, which lines; backward and growth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import add

from tensorlens.capture.present.instants import (
    BlockRow,
    Instant,
    backward_rows,
    growth_span,
    instants,
    left_out,
    line_place,
    lines_limit,
    source_of,
)
from tensorlens.capture.present.modules import ModuleRow, module_table
from tensorlens.capture.present.remarks import (
    backward_title,
    device_remarks,
    device_sources,
    extent,
)
from tensorlens.census.present.inventory import Hidden
from tensorlens.records.moments import BackwardCost, Resident
from tensorlens.records.recordings import Recording
from tensorlens.records.tensors import SourceLine
from tensorlens.render.figures import counted, duration, size
from tensorlens.render.shortening import told_apart
from tensorlens.render.source import clipped, place, width
from tensorlens.render.text.page import GAP, Page, aligned, padded, ruled

_INDENT = 2
_UNDER = 6
_NAME_ROOM = 60
_NAME_LEAST = 16
_NAME_WANTED = 36
_PLACE_ROOM = 34
_PLACE_LEAST = 22
"""Columns of a file and a line, ``modeling_llama.py:164``: cut, they lead nowhere."""
_MODEL_ROOM = 56
"""Columns of the lines of a model, which are told with the function."""
_SOURCE_LEAST = 12
_VARIABLES = "  Variables are those of {}, where no function is named:"


def recording_parts(recording: Recording, page: Page) -> list[str]:
    """Return the parts of the report: header, several per device, backward, growth."""
    found = ["\n".join(_header(recording, page))]
    shown = instants(recording, page.view)
    for instant in shown:
        found += _device(recording, instant, page)
    found += _backward(recording, page)
    found += _growth(recording, page)
    others = [
        f"{page.shown(device)} (peak {size(nbytes)})"
        for device, nbytes in left_out(recording, page.view)
    ]
    if others:
        found.append("\n".join(page.wrapped("Not shown: ", ", ".join(others))))
    return found


def _header(recording: Recording, page: Page) -> list[str]:
    origin = recording.origin
    kind = "" if origin.provenance == "measured" else f" ({page.shown(origin.provenance)})"
    process = f", {page.shown(origin.process)}" if origin.process else ""
    lines = page.wrapped(f"Memory over time{kind}{process}", "")
    devices = device_sources(recording)
    room = max((width(page.shown(device)) for device, _ in devices), default=0)
    for device, source in devices:
        lines += page.wrapped(f"  {padded(page.shown(device), room)}  ", page.shown(source))
    lines += page.wrapped("  ", extent(recording))
    for note in origin.notes:
        lines += page.wrapped("  note: ", page.shown(note))
    return lines


def _device(recording: Recording, instant: Instant, page: Page) -> list[str]:
    head = page.wrapped(f"{page.shown(instant.device)}  ", page.shown(instant.headline))
    remarks = [
        line
        for text in device_remarks(recording, instant)
        for line in page.wrapped("  ", page.shown(text))
    ]
    return [
        "\n".join(head + _roles(instant, page)),
        "\n".join(_blocks(instant, page)),
        "\n".join(_lines(instant, page)),
        "\n".join(_modules(instant.moment.by_line, instant.moment.by_module, page)),
        "\n".join(remarks),
    ]


def _roles(instant: Instant, page: Page) -> list[str]:
    if not instant.roles:
        return []
    cells = [["Role", "Size", "Share"]]
    for role, nbytes in instant.roles:
        cells.append([page.shown(role), size(nbytes), share(nbytes, instant.moment.bytes)])
    return ruled(aligned(cells, (False, True, True), _INDENT), page, _INDENT)


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent; empty where there is nothing."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def more_rows(hidden: Hidden, what: str, page: Page) -> list[str]:
    """Return the line that tells how many rows of a kind are not shown."""
    why = f" ({hidden.why})" if hidden.why else ""
    count = f"{hidden.count:,} more {counted(hidden.count, what).split()[1]}"
    return page.wrapped(f"  {page.glyphs.ellipsis} ", f"{count}, {size(hidden.nbytes)}{why}")


def _blocks(instant: Instant, page: Page) -> list[str]:
    found = _block_table(instant.rows, page) if instant.rows else []
    for hidden in instant.hidden:
        found += more_rows(hidden, "block", page)
    return found


def _block_table(rows: Sequence[BlockRow], page: Page) -> list[str]:
    names = [page.shown(row.name) for row in rows]
    counts = [_times(row.count) for row in rows]
    cells = [["Role", "Size", "Age"]]
    cells += [[page.shown(row.first.role), size(row.nbytes), _age(row.first)] for row in rows]
    places = [page.shown(row.place) for row in rows]
    longest, place_most = max(map(width, map(add, names, counts))), max(map(width, places))
    free = page.width - _INDENT - _width_of(cells)
    left_out = free - GAP - min(_PLACE_LEAST, place_most) < min(longest, _NAME_WANTED)
    if left_out:
        # a name says more than an age
        cells = [each[:-1] for each in cells]
        free = page.width - _INDENT - _width_of(cells)
    place_room = min(_PLACE_ROOM, place_most, free - GAP - min(longest, _NAME_ROOM))
    place_room = max(place_room, min(_PLACE_LEAST, place_most))
    has_lines = any(row.first.charged for row in rows)
    room = max(free - has_lines * (max(place_room, len("Line")) + GAP), _NAME_LEAST)
    function = _common_function(names) if longest > room else None
    told = [name.removeprefix(f"{function}: ") for name in names]
    fitted = told_apart(told, [room - len(count) for count in counts], page.glyphs.ellipsis)
    texts = [name + count for name, count in zip(fitted, counts, strict=True)]
    short = told_apart(places, [place_room] * len(places), page.glyphs.ellipsis)
    columns = [["Name", *texts], *map(list, zip(*cells, strict=True))]
    right = [False, False, *[True] * (len(cells[0]) - 1)]
    if has_lines:
        columns.append(["Line", *short])
        right.append(False)
    lines = ruled(aligned(list(zip(*columns, strict=True)), right, _INDENT), page, _INDENT)
    above = [] if function is None else page.wrapped(_VARIABLES.format(function), "")
    said = f"  Left out to fit {page.width} characters: Age. "
    below = page.wrapped(said, "A wider terminal, .html and .csv show more.") if left_out else []
    if not page.view.verbose:
        return above + lines + below
    found = above + lines[:2]
    for row, line, name, text in zip(rows, lines[2:], names, texts, strict=True):
        cut = [] if text.startswith(name) else [name]
        found += [line, *_everything(row.first, cut, page)]
    return found + below


def _width_of(cells: Sequence[Sequence[str]]) -> int:
    return sum(max(map(width, column)) + GAP for column in zip(*cells, strict=True))


def _times(count: int) -> str:
    return f" x {count:,}" if count > 1 else ""


def _common_function(names: Sequence[str]) -> str | None:
    """Return the function, ``train()``, whose variables most names begin with; None if few do.

    Without it, no two names may be the same.
    """
    heads = Counter(name.partition(": ")[0] for name in names if "(): " in name)
    found = [(count, head) for head, count in heads.items() if head.endswith("()")]
    count, head = max(found, default=(0, ""))
    is_common = count > 1 and 4 * count >= len(names)
    are_told_apart = len({name.removeprefix(f"{head}: ") for name in names}) == len(set(names))
    return head if is_common and are_told_apart else None


def _age(block: Resident) -> str:
    return "before" if block.age_ns is None else duration(block.age_ns)


def _everything(block: Resident, texts: list[str], page: Page) -> list[str]:
    if block.dtype or block.shape is not None:
        shape = "" if block.shape is None else str(block.shape)
        texts.append(" ".join(filter(None, (block.dtype, shape))))
    made = [block.op or "", f"in {block.module}" if block.module else "", block.phase]
    texts.append("made by " + ", ".join(filter(None, made)))
    if block.born:
        texts.append(f"born at {place(block.born, function=True)}")
    if block.charged and block.charged != block.born:
        texts.append(f"counted for {place(block.charged, function=True)}")
    if block.model_line:
        texts.append(f"line of the model {place(block.model_line, function=True)}")
    indent = " " * _UNDER
    return [line for text in texts for line in page.wrapped(indent, page.shown(text), _UNDER + 2)]


def _lines(instant: Instant, page: Page) -> list[str]:
    if not instant.lines or all(row.line is None for row in instant.lines):
        return ["  By line: n/a: no block has a Python stack"] if instant.rows else []
    cells = [["Size", "Share"]]
    cells += [[size(row.nbytes), share(row.nbytes, instant.moment.bytes)] for row in instant.lines]
    places = [row.place for row in instant.lines]
    found = with_source(cells, places, [row.source for row in instant.lines], page)
    if instant.hidden_lines:
        found += more_rows(instant.hidden_lines, "line", page)
    return found


def _modules(
    by_line: Mapping[SourceLine | None, int], by_module: Mapping[str | None, int], page: Page
) -> list[str]:
    """Return a table by module where lines tell little."""
    rows, hidden = module_table(by_line, by_module, lines_limit(page.view))
    return rows_by_module(rows, hidden, sum(by_module.values()), page) if rows else []


def rows_by_module(
    rows: Sequence[ModuleRow], hidden: Hidden | None, whole: int, page: Page
) -> list[str]:
    """Return the table of modules, with the share that each has of ``whole`` bytes."""
    counts = [_times(row.count) for row in rows]
    cells = [["Size", "Share"], *([size(row.nbytes), share(row.nbytes, whole)] for row in rows)]
    fixed = sum(max(map(width, column)) + GAP for column in zip(*cells, strict=True))
    room = max(page.width - _INDENT - fixed, _NAME_LEAST)
    whole_paths = [page.shown(row.path) for row in rows]
    fitted = told_apart(whole_paths, [room - len(each) for each in counts], page.glyphs.ellipsis)
    paths = [path + count for path, count in zip(fitted, counts, strict=True)]
    table = [[*each, path] for each, path in zip(cells, ("Module", *paths), strict=True)]
    found = ruled(aligned(table, (True, True, False), _INDENT), page, _INDENT)
    return found + (more_rows(hidden, "module", page) if hidden else [])


def with_source(
    cells: Sequence[list[str]], places: Sequence[str], sources: Sequence[str], page: Page
) -> list[str]:
    """Return a table of figures, the line that they belong to, and its text where there is room."""
    # a line of a model stands below the user's, a little to the right
    places = [" " * (len(each) - len(each.lstrip())) + page.shown(each.lstrip()) for each in places]
    sources = [page.shown(each) for each in sources]
    fixed = sum(max(map(width, column)) + GAP for column in zip(*cells, strict=True))
    free = page.width - _INDENT - fixed
    longest = max(map(width, places))
    want = max(map(width, sources))
    least = _MODEL_ROOM if any(each.startswith(" ") for each in places) else _PLACE_ROOM
    room = min(longest, max(least, free - GAP - want))
    if not want or free - room - GAP < _SOURCE_LEAST:
        room, source_room = min(longest, max(free, _PLACE_LEAST)), 0
    else:
        source_room = free - max(room, len("Line")) - GAP
    rows = [[*cells[0], "Line"]]
    short = told_apart(places, [room] * len(places), page.glyphs.ellipsis)
    rows += [[*figures, each] for figures, each in zip(cells[1:], short, strict=True)]
    right = [True] * len(cells[0]) + [False]
    if source_room:
        texts = (clipped(each, source_room, page.glyphs.ellipsis) for each in sources)
        rows = [[*row, text] for row, text in zip(rows, ("Source", *texts), strict=True)]
        right.append(False)
    return ruled(aligned(rows, right, _INDENT), page, _INDENT)


def _backward(recording: Recording, page: Page) -> list[str]:
    found = []
    for device in recording.devices:
        costs = recording.backward(device) if page.view.shows_device(device) else ()
        if costs:
            found.append("\n".join(_backward_table(recording, device, costs, page)))
    return found


def _backward_table(
    recording: Recording, device: str, costs: Sequence[BackwardCost], page: Page
) -> list[str]:
    total = size(sum(cost.nbytes for cost in costs))
    text = f"{backward_title(recording)}: {total}"
    found = page.wrapped(f"{page.shown(device)}  ", text)
    limit = lines_limit(page.view)
    shown = costs if limit is None else costs[:limit]
    cells = [["Allocated", "Kept", "Peak"]]
    places, sources = [], []
    for cost, rows in zip(shown, backward_rows(recording.log, shown, limit), strict=True):
        cells.append([size(cost.nbytes), size(cost.kept), size(cost.peak)])
        cells += [[size(row.nbytes), "", ""] for row in rows[1:]]
        places += [row.place for row in rows]
        sources += [row.source for row in rows]
        for line, nbytes in cost.alloc_sites.items():
            cells.append([size(nbytes), "", ""])
            places.append(f"of it {line_place(line)}")
            sources.append(source_of(recording.log, line))
    found += with_source(cells, places, sources, page)
    rest = costs[len(shown) :]
    if rest:
        found += more_rows(Hidden(len(rest), sum(cost.nbytes for cost in rest), ""), "line", page)
    by_line = {cost.line: cost.nbytes for cost in costs}
    modules = _modules(by_line, recording.backward_modules(device), page)
    return [*found, "", *modules] if modules else found


def _growth(recording: Recording, page: Page) -> list[str]:
    span = growth_span(recording)
    if span is None:
        return []
    growths = [each for each in recording.growth(span.start, span.end) if each.nbytes]
    total = size(sum(each.nbytes for each in growths), signed=True)
    found = page.wrapped("", f"Growth {page.shown(span.text)}: {total}")
    limit = lines_limit(page.view)
    shown = growths if limit is None else growths[:limit]
    if not shown:
        return ["\n".join(found)]
    cells = [["Change", "Blocks", "Role"]]
    cells += [[size(each.nbytes, signed=True), f"{each.blocks:+,}", each.role] for each in shown]
    places = [line_place(each.line) for each in shown]
    found += with_source(
        cells, places, [source_of(recording.log, each.line) for each in shown], page
    )
    rest = growths[len(shown) :]
    if rest:
        nbytes = size(sum(each.nbytes for each in rest), signed=True)
        more = counted(len(rest), "line").replace(" ", " more ", 1)
        found += page.wrapped(f"  {page.glyphs.ellipsis} ", f"{more}, {nbytes}")
    return ["\n".join(found)]
