"""A line in the texts of a leak report: where it is, and what it says."""

from __future__ import annotations

import linecache

from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import place


def place_of(line: SourceLine | None) -> str:
    """Return where a line is, and in which function."""
    return "a line that is not known" if line is None else place(line, function=True)


def source_of(line: SourceLine | None) -> str:
    """Return what a line says; nothing where its file cannot be read."""
    return "" if line is None else linecache.getline(line.filename, line.lineno).strip()
