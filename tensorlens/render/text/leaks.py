"""Leak reports as text: the verdict, each leak with what holds it, and what else grew."""

from __future__ import annotations

from collections.abc import Sequence

from tensorlens.records.leaks import Growth, LeakReport
from tensorlens.render.figures import size
from tensorlens.render.leakage import (
    LeakLayout,
    balances,
    bars,
    layouts,
    levels,
    thinned,
    watched,
)
from tensorlens.render.source import clipped, shortened, width
from tensorlens.render.text.page import Page, padded

_MARKS = "▁▂▃▄▅▆▇█"
_LABEL = 11
_INDENT = 3
_MOST_BARS = 60
_MOST_NUMBERS = 8


def leak_parts(report: LeakReport, page: Page) -> list[str]:
    """Return the parts of the report: verdict, one part per leak, what else grew."""
    parts = ["\n".join(_header(report, page))]
    shown = layouts(report)
    room = len(str(len(shown)))
    for number, each in enumerate(shown, 1):
        parts.append("\n".join(_leak(f"{number:{room}}", each, page)))
    if report.others:
        parts.append("\n".join(_others(report.others, page)))
    return parts


def _header(report: LeakReport, page: Page) -> list[str]:
    measured = report.provenance == "measured"
    kind = "" if measured else f" ({page.shown(report.provenance)})"
    lines = page.wrapped("", page.shown(report.verdict) + kind)
    lines += page.wrapped("  watched    ", watched(report), _LABEL + 2)
    lines += _levels(report, page)
    grown = [(page.shown(device), text) for device, text in balances(report)]
    room = max((width(device) for device, _ in grown), default=0)
    for place, (device, text) in enumerate(grown):
        start = f"  {'' if place else 'growth':{_LABEL}}{padded(device, room)}  "
        lines += page.wrapped(start, text, width(start))
    for note in report.notes:
        lines += page.wrapped("  note: ", page.shown(note))
    return lines


def _levels(report: LeakReport, page: Page) -> list[str]:
    devices = levels(report)
    room = max((width(page.shown(each.device)) for each in devices), default=0)
    lines: list[str] = []
    for each in devices:
        start = f"  {'allocated' if not lines else '':{_LABEL}}"
        start += f"{padded(page.shown(each.device), room)}  "
        if _can_hold_marks(page):
            most = max(8, min(_MOST_BARS, page.width - width(start) - width(each.text) - 2))
            text = f"{bars(thinned(each.known, most), _MARKS)}  {each.text}"
        else:
            text = ", ".join(map(size, thinned(each.known, _MOST_NUMBERS)))
        lines += page.wrapped(start, text, width(start))
    return lines


def _can_hold_marks(page: Page) -> bool:
    try:
        _MARKS.encode(page.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _leak(number: str, layout: LeakLayout, page: Page) -> list[str]:
    leak = layout.leak
    indent = len(number) + 2
    lines = page.wrapped(f"{number}  ", layout.rate, indent)
    where = page.shown(layout.where)
    lines += _row("made at", [where], indent, page)
    lines += _source(leak.source, indent, page)
    lines += _row("held by", layout.held_by, indent, page)
    for path in layout.also_held_by:
        lines += _row("and by", path, indent, page)
    for place, (text, source) in enumerate(layout.below):
        lines += _words("" if place else "below it", text, indent, page)
        lines += _source(source, indent, page)
    if layout.example:
        name, *facts = layout.example
        parts = [f"{name}:", *(f"{fact}," for fact in facts[:-1]), *facts[-1:]]
        lines += _row("example", parts, indent, page)
    lines += _words(page.shown(leak.certainty), leak.reason, indent, page)
    if leak.advice:
        lines += _words("advice", leak.advice, indent, page)
    return lines


def _source(source: str, indent: int, page: Page) -> list[str]:
    if not source:
        return []
    start = " " * (indent + _LABEL + 2)
    shown = page.shown(source.strip())
    return [start + clipped(shown, page.width - width(start), page.glyphs.ellipsis)]


def _row(label: str, pieces: Sequence[str], indent: int, page: Page) -> list[str]:
    """Return pieces in as few lines as they fit in, none of them broken."""
    start = " " * indent + f"{label:{_LABEL}}"
    lines = [start]
    for piece in pieces:
        room = page.width - len(start)
        text = shortened(page.shown(piece), room - 2, page.glyphs.ellipsis)
        used = width(lines[-1])
        if used == len(start):
            lines[-1] += text
        elif used + 1 + width(text) <= page.width:
            lines[-1] += f" {text}"
        else:
            lines.append(" " * (len(start) + 2) + text)
    return lines


def _words(label: str, text: str, indent: int, page: Page) -> list[str]:
    start = " " * indent + f"{label:{_LABEL}}"
    return page.wrapped(start, page.shown(text), len(start))


def _others(others: Sequence[Growth], page: Page) -> list[str]:
    lines = ["What else grew"]
    for other in others:
        lines += _words(page.shown(other.kind), other.text, _INDENT, page)
        if other.path and other.path not in other.text:
            pieces = other.path.split(" -> ")
            shown = [pieces[0], *(f"-> {piece}" for piece in pieces[1:])]
            lines += _row("", shown, _INDENT, page)
    return lines
