"""The peak of an estimate in words: when and where it is, and what has most of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from tensorlens.planning.estimate.peak_parts import library_bytes
from tensorlens.planning.estimate.result import Estimate
from tensorlens.recording.moments import Resident
from tensorlens.recording.present.instants import (
    LineRow,
    line_rows,
    mark_before,
)
from tensorlens.recording.present.remarks import largest_lines, largest_tensors, part
from tensorlens.records.events import ALLOC
from tensorlens.render.figures import size
from tensorlens.render.source import model_place, place, printable
from tensorlens.tensors.present.inventory import LeftOut

SETUP = "setup"
"""Part before the first mark."""


def peak_block(estimate: Estimate) -> Resident | None:
    """Return the block whose allocation made the peak."""
    log, row = estimate.recording.log, estimate.peak_row
    if not 0 <= row < len(log) or log.kind[row] != ALLOC:
        return None
    (block,) = estimate.recording.blocks((row,))
    return block


def peak_step(estimate: Estimate) -> str:
    """Return the step that the peak is in: ``step 2``, or :data:`SETUP`."""
    mark = mark_before(estimate.recording.marks, estimate.peak_row)
    return SETUP if mark is None else printable(mark.name)


def peak_place(estimate: Estimate) -> str:
    """Return ``in backward of step 2, at train.py:12 in step, in module fc1``."""
    step, block = peak_step(estimate), peak_block(estimate)
    when = "while model and data are made" if step == SETUP else f"in {step}"
    if block is None:
        return when
    if step != SETUP and block.phase != "other":
        when = f"in {printable(block.phase)} of {step}"
    line = block.charged or block.born
    where = [f"at {place(line, function=True)}"] if line else []
    where += [f"in module {printable(block.module)}"] if block.module else []
    where += [f"for {printable(block.op)}"] if block.op else []
    return ", ".join([when, *where])


def culprits(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Give when the peak is, and the line and the tensors that have most of it."""
    whole = estimate.peak_allocated
    if not whole:
        return
    yield "peak", f"{size(whole)} {peak_place(estimate)}"
    rows, _ = peak_lines(estimate, 1)
    libraries = library_bytes(estimate)
    library = max(libraries, key=libraries.__getitem__, default="")
    if library and libraries[library] > max((row.nbytes for row in rows if row.line), default=0):
        yield "library", f"{printable(library)}, {part(libraries[library], whole)}"
    yield from largest_lines(rows, whole)
    tensor = largest_tensors(
        estimate.recording, estimate.device, estimate.peak_row, whole, libraries
    )
    if tensor:
        yield "tensor", tensor


def peak_lines(estimate: Estimate, limit: int | None) -> tuple[tuple[LineRow, ...], LeftOut | None]:
    """Return the lines with most bytes at the peak, then what libraries have, and the others."""
    libraries = library_bytes(estimate)
    sizes = _without(estimate.by_line, sum(libraries.values()))
    log = estimate.recording.log
    rows, hidden = line_rows(log, sizes, limit, estimate.peak.by_model_line)
    # their source says more than their function
    rows = tuple(
        replace(row, label=f"  {model_place(row.line)}")
        if row.is_model and row.source and row.line
        else row
        for row in rows
    )
    of_libraries = (
        LineRow(None, nbytes, "", label=f"{printable(name)} (library)")
        for name, nbytes in libraries.items()
    )
    return (*rows, *of_libraries), hidden


def peak_modules(estimate: Estimate) -> Mapping[str | None, int]:
    """Return the bytes of modules at the peak, and what libraries keep beside them."""
    libraries = library_bytes(estimate)
    sizes = _without(estimate.by_module, sum(libraries.values()))
    return {**sizes, **{f"{name} (library)": nbytes for name, nbytes in libraries.items()}}


K = TypeVar("K")


def _without(sizes: Mapping[K | None, int], nbytes: int) -> dict[K | None, int]:
    """Return sizes less what is in none of their places but known otherwise."""
    known = {**sizes, None: sizes.get(None, 0) - nbytes}
    return {place: size for place, size in known.items() if size > 0}
