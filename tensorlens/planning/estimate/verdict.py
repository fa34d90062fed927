"""Sentences on an estimate: whether it fits, the moment of its peak, and its largest parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tensorlens.planning.estimate.figures import library_bytes
from tensorlens.planning.estimate.result import Estimate, Fit, Range, Verdict
from tensorlens.planning.trace import Caution
from tensorlens.recording.analysis import Resident
from tensorlens.recording.present.moment_layout import LineRow, line_rows, mark_before
from tensorlens.recording.present.remarks import largest_lines, largest_tensors, part
from tensorlens.records.logs.events import ALLOC
from tensorlens.render.figures import LeftOut, size
from tensorlens.render.source import model_place, place, printable

_JUMP_DIVISOR = 50
"""A jump is explained if it exceeds the capacity divided by this."""


def largest_batch_text(estimate: Estimate) -> str:
    """Return the largest batch in one line; empty if it was not asked for."""
    found = estimate.largest
    if found is None:
        return ""
    capacity = size(found.capacity)
    needed = "" if found.next_needed is None else size(found.next_needed)
    if not found.batch:
        return f"not even a batch of {found.next_batch:,} fits into {capacity}: it needs {needed}"
    is_tight = estimate.fits(found.capacity).verdict == Verdict.TIGHT
    likely, tight = ("likely ", ", which is tight") if is_tight else ("", "")
    uneven = "; need does not rise with every batch: a smaller one may not fit"
    end = uneven if found.is_uneven else ""
    answer = f"the largest batch that {likely}fits into {capacity} is {found.batch:,}{tight}"
    if found.is_limit:
        return f"{answer}, the largest that was tried{end}"
    if found.next_batch is None:
        return answer + end
    need = "may need up to" if found.is_sure else f"would {likely}need"
    answer += f"; {found.next_batch:,} {need} {needed}"
    own = estimate.needed.high if found.is_sure else estimate.needed.point
    jump = (found.next_needed or 0) - own
    if estimate.framework == "tensorflow" and jump * _JUMP_DIVISOR > found.capacity:
        answer += f", {size(jump)} more: TensorFlow's allocator takes memory in ever larger regions"
    return answer + end


def title(estimate: Estimate) -> str:
    """Return the title: the program and the device."""
    program = f": {printable(estimate.program)}" if estimate.program else ""
    return f"Estimate for {printable(estimate.device)}{program}"


def conditions(estimate: Estimate) -> tuple[tuple[str, str], ...]:
    """Return the conditions of the estimate: card, allocator settings, versions."""
    card = estimate.card
    found = []
    if card is not None:
        sheet = " by its data sheet" if card.is_nominal else ""
        capability = ".".join(map(str, card.capability))
        text = (
            f"{printable(card.name)}, {size(card.memory)}{sheet}, compute capability {capability}"
        )
        text += " (assumed; name yours with --card, card=...)" if card.is_assumed else ""
        found.append(("card", text))
    if estimate.settings:
        found.append(("allocator", printable(estimate.settings)))
    if estimate.versions:
        versions = (f"{name} {version}" for name, version in estimate.versions.items())
        found.append(("versions", printable(", ".join(versions))))
    return tuple(found)


def range_text(nbytes: Range) -> str:
    """Return ``9.61 GiB (9.40 GiB to 9.93 GiB)``, or one figure if the bounds look the same."""
    low, point, high = size(nbytes.low), size(nbytes.point), size(nbytes.high)
    return point if low == high else f"{point} ({low} to {high})"


def caution_text(caution: Caution) -> str:
    """Return the text of an assumption, with its line."""
    where = "" if caution.line is None else f" ({place(caution.line, function=True)})"
    return f"{caution.text}{where}"


def fit_of(estimate: Estimate) -> Fit | None:
    """Return how it fits into the capacity asked for, else the card's memory; None without both."""
    return None if estimate.fits.capacity is None else estimate.fits


def verdict(estimate: Estimate) -> str:
    """Return the verdict in one line: whether it fits, what it needs, what is left or missing."""
    needed, fit = estimate.needed, fit_of(estimate)
    unsimulated = estimate.unsimulated
    if unsimulated:
        needed = Range.exactly(needed.point)
    if fit is None or fit.capacity is None:
        text = f"needs {range_text(needed)}"
        return f"likely {text}; {unsimulated}: no bounds are known" if unsimulated else text
    where = size(fit.capacity)
    if estimate.capacity is None:
        where = f"the card's {where}"
    spare = fit.capacity - needed.point
    if fit.verdict == Verdict.FITS:
        return f"fits into {where}: needs {range_text(needed)}, {size(spare)} to spare"
    if fit.verdict == Verdict.TIGHT and unsimulated:
        return (
            f"likely fits into {where}: needs {range_text(needed)}, {size(spare)} to spare;"
            f" {unsimulated}: no bounds are known"
        )
    if fit.verdict == Verdict.TIGHT:
        return (
            f"tight in {where}: likely needs {size(needed.point)}, {size(spare)} to spare,"
            f" but may need up to {size(needed.high)}"
        )
    return f"does not fit into {where}: needs {range_text(needed)}, {size(-spare)} short"


def peak_block(estimate: Estimate) -> Resident | None:
    """Return the block whose allocation made the peak."""
    log, row = estimate.recording.log, estimate.peak_row
    if not 0 <= row < len(log) or log.kind[row] != ALLOC:
        return None
    (block,) = estimate.recording.blocks((row,))
    return block


def peak_step(estimate: Estimate) -> str:
    """Return the step of the peak: ``step 2``, or ``setup`` before the first."""
    mark = mark_before(estimate.recording.marks, estimate.peak_row)
    return "setup" if mark is None else printable(mark.name)


def peak_place(estimate: Estimate) -> str:
    """Return ``in backward of step 2, at train.py:12 in step, in module fc1``."""
    step, block = peak_step(estimate), peak_block(estimate)
    is_setup = step == "setup"
    when = "while model and data are made" if is_setup else f"in {step}"
    if block is None:
        return when
    if not is_setup and block.phase != "other":
        when = f"in {printable(block.phase)} of {step}"
    line = block.charged or block.born
    where = [f"at {place(line, function=True)}"] if line else []
    where += [f"in module {printable(block.module)}"] if block.module else []
    where += [f"for {printable(block.op)}"] if block.op else []
    return ", ".join([when, *where])


def culprits(estimate: Estimate) -> Iterator[tuple[str, str]]:
    """Yield the peak's moment, its largest library if no line is larger, its line and tensors."""
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
    """Return the lines with most bytes at the peak, then libraries, then the rest."""
    libraries = library_bytes(estimate)
    sizes = _without(estimate.by_line, sum(libraries.values()))
    log = estimate.recording.log
    rows, hidden = line_rows(log, sizes, limit, estimate.peak.by_model_line)
    # the source is shown: leave out the function's name
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
    """Return the bytes of modules at the peak, and of libraries."""
    libraries = library_bytes(estimate)
    sizes = _without(estimate.by_module, sum(libraries.values()))
    return {**sizes, **{f"{name} (library)": nbytes for name, nbytes in libraries.items()}}


def _without(sizes: Mapping[Any, int], nbytes: int) -> dict[Any, int]:
    """Return the sizes of places, with ``nbytes`` subtracted from those of no place (None)."""
    known = {**sizes, None: sizes.get(None, 0) - nbytes}
    return {place: size for place, size in known.items() if size > 0}
