"""Cells and rows that tables of several records share: shares of a whole, and what is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorlens.render.blocks import Cell, Column, Row, Table
from tensorlens.render.figures import counted, size


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that a view leaves out."""

    count: int
    nbytes: int
    """Their bytes; in a difference, by how many they changed."""
    why: str


def more_rows(hidden: LeftOut | None, what: str, *, signed: bool = False) -> tuple[str, ...]:
    """Return how many rows of a kind are not shown; nothing where all are."""
    if hidden is None:
        return ()
    why = f" ({hidden.why})" if hidden.why else ""
    return (f"{counted(hidden.count, f'more {what}')}, {size(hidden.nbytes, signed=signed)}{why}",)


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent; empty where there is nothing."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def size_cell(nbytes: int | None, whole: int) -> Cell:
    """Return bytes with a bar that is as long as their part of ``whole``."""
    return Cell(size(nbytes), bar=bar(nbytes or 0, whole))


def bar(nbytes: int, whole: int) -> tuple[float, float]:
    """Return the bar of a cell that is as long as a part of ``whole``."""
    return (0.0, max(0.0, min(nbytes / whole, 1.0)) if whole else 0.0)


def share_table(title: str, parts: Iterable[tuple[str, int, str]], whole: int) -> Table:
    """Return what each part, with the colour of its kind, has of ``whole`` bytes."""
    rows = (
        Row((Cell(label, swatch=colour), size_cell(nbytes, whole), share(nbytes, whole)))
        for label, nbytes, colour in parts
    )
    return Table((Column(title, "text"), Column("Size"), Column("Share")), tuple(rows))
