"""Bytes by module, equal layers together, decided once for text and HTML.

A model of twelve equal blocks has each of its layers twelve times: to a reader they are one thing,
``transformer.h[0-11].mlp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tensorlens.records.names import number_ranges
from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import printable
from tensorlens.tensors.present.inventory import LeftOut

_ANY = "*"


@dataclass(frozen=True, slots=True)
class ModuleRow:
    """A module, or several that differ in numbers of their path alone."""

    path: str
    count: int
    nbytes: int
    """Bytes of all of them."""


ModuleTable = tuple[tuple[ModuleRow, ...], LeftOut | None]
"""The rows that are shown, and the sum of the others."""


def module_rows(
    by_line: Mapping[SourceLine | None, int],
    by_module: Mapping[str | None, int],
    limit: int | None,
) -> ModuleTable:
    """Return the modules with the most bytes and the sum of the others, where they tell more.

    That is where one line has half of what is counted for lines at all, as the call of a model has
    whose own code is a library's, and several modules are known; else there are no rows.
    """
    known = [nbytes for line, nbytes in by_line.items() if line is not None]
    paths = [path for path in by_module if path is not None]
    if len(paths) < 2 or 2 * max(known, default=0) < sum(known):
        return (), None
    rows = _rows(by_module)
    limit = len(rows) if limit is None else limit
    rest = rows[limit:]
    hidden = LeftOut(sum(row.count for row in rest), sum(row.nbytes for row in rest), "")
    return tuple(rows[:limit]), hidden if rest else None


def _rows(by_module: Mapping[str | None, int]) -> list[ModuleRow]:
    rows = [
        ModuleRow(name, len(paths), sum(by_module[path] for path in paths))
        for name, paths in module_families(by_module)
    ]
    return sorted(rows, key=lambda row: (-row.nbytes, row.path))


def module_families(modules: Iterable[str | None]) -> list[tuple[str, list[str | None]]]:
    """Return modules that differ in numbers of their path alone together, with their name."""
    modules = [*modules]
    parts = {path: tuple(path.split(".")) for path in modules if path is not None}
    above = _numbered(parts.values())
    groups: dict[tuple[str, ...], list[str | None]] = {}
    for path, found in parts.items():
        groups.setdefault(_pattern(found, above), []).append(path)
    families = [
        (_text([parts[path] for path in paths if path is not None], pattern), paths)
        for pattern, paths in groups.items()
    ]
    if None in modules:
        families.append(("(no module known)", [None]))
    return families


def _numbered(paths: Iterable[Sequence[str]]) -> set[tuple[str, ...]]:
    """Return the beginnings of paths that end in a number and have something below them."""
    return {
        tuple(path[: place + 1])
        for path in paths
        for place, part in enumerate(path[:-1])
        if part.isdecimal()
    }


def _pattern(path: tuple[str, ...], above: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the path with any number in place of those that number what has modules of its own.

    The numbers of a ``Sequential`` of plain layers stay: what they number is not alike.
    """
    return tuple(
        _ANY if part.isdecimal() and path[: place + 1] in above else part
        for place, part in enumerate(path)
    )


def _text(paths: Sequence[tuple[str, ...]], pattern: Sequence[str]) -> str:
    text = ""
    for place, part in enumerate(pattern):
        numbers = sorted({int(path[place]) for path in paths}) if part == _ANY else []
        if len(numbers) > 1:
            text += f"[{number_ranges(numbers)}]"
        else:
            text += f".{paths[0][place]}"
    return printable(text.removeprefix("."))
