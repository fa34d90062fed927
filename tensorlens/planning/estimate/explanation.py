"""Explains an estimate in words, with a sum that can be checked by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tensorlens.planning.estimate.figures import (
    ACTIVATION_GRADIENT,
    PeakPart,
    bytes_of,
    peak_parts,
    peaks_by_kind,
    sum_rows,
)
from tensorlens.planning.estimate.result import Estimate, EstimateTerm
from tensorlens.planning.estimate.verdict import (
    caution_text,
    largest_batch_text,
    peak_block,
    peak_place,
    range_text,
    title,
    verdict,
)
from tensorlens.records.torch_files.sizes import MIN_BLOCK
from tensorlens.render.blocks import Block, Column, Paragraph, Row, Table
from tensorlens.render.figures import counted, exact_size, size

_MIN_ACTIVATIONS = 0.05
"""Least fraction of activations in the peak for the rules of thumb to be explained."""


def explanation(estimate: Estimate) -> Sequence[Block]:
    """Return the explanation, with the sum at the end."""
    parts, most = peak_parts(estimate), peaks_by_kind(estimate)
    texts = [
        largest_batch_text(estimate),
        f"{title(estimate)}. It {verdict(estimate)}.",
        f"The most is allocated {peak_place(estimate)}: {exact_size(estimate.peak_allocated)}."
        " At that instant there are:",
        *_kinds(estimate, parts, most),
        *map(_term, estimate.terms),
        _rules_of_thumb(estimate, parts, most),
        *(f"Warning: {caution_text(each)}" for each in estimate.warnings),
    ]
    return [*(Paragraph(text) for text in texts if text), _sum(estimate, parts)]


_LABELS = {
    "parameter": "Parameters",
    "buffer": "Buffers",
    "gradient": "Gradients of parameters",
    "optimizer": "Optimizer state",
    "activation": "Activations, which forward keeps for backward",
    ACTIVATION_GRADIENT: "Gradients of activations, which go as soon as backward has used them",
    "input": "Inputs",
    "temporary": "Temporaries, which an operator has while it runs",
    "other": "Other tensors",
}
_GROWING = ("activation", "input", ACTIVATION_GRADIENT)
"""Kinds that grow with the batch."""
_ABSENT = {"gradient": "Gradients", "optimizer": "Optimizer state", "activation": "Activations"}
"""Kinds that are named even if they only have bytes at other moments than the peak."""


def _kinds(
    estimate: Estimate, parts: Mapping[str, PeakPart], most: Mapping[str, int]
) -> Iterator[str]:
    for kind, label in _LABELS.items():
        part = next((each for each in parts.values() if each.kind == kind), None)
        if part is not None:
            block = peak_block(estimate) if kind == "temporary" else None
            label += f", {block.op}" if block and block.op else ""
            detail = _detail(estimate, part, bytes_of(parts, "parameter"), most.get(kind, 0))
            yield f"{label}: {exact_size(part.nbytes)} in {detail}."
        elif kind in _ABSENT and most.get(kind):
            at_most = size(most[kind])
            yield f"{_ABSENT[kind]}: none then; {at_most} at their most, at another moment."


def _detail(estimate: Estimate, part: PeakPart, parameters: int, most: int) -> str:
    texts = [counted(part.blocks, "block")]
    if part.kind in ("gradient", "optimizer") and parameters:
        texts.append(f"{part.nbytes / parameters:.2f} times the parameters")
    # blocks no larger than an allocator's unit do not grow with the batch
    if part.kind in _GROWING and estimate.batch and part.nbytes > MIN_BLOCK * part.blocks:
        items = counted(estimate.batch, "item")
        texts.append(f"{size(part.nbytes // estimate.batch)} for each of the {items} of the batch")
    if part.kind in _ABSENT and most > part.nbytes:
        texts.append(f"{size(most)} at their most")
    return ", ".join(texts)


def _term(term: EstimateTerm) -> str:
    why = _capital(term.why.strip())
    reason = f" {why}{'' if why.endswith('.') else '.'}" if why else ""
    return f"{_capital(term.name)}: {range_text(term.nbytes)}.{reason}"


def _capital(text: str) -> str:
    """Return the text with a capital, except for names such as cuBLAS."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].islower() else text


def _rules_of_thumb(
    estimate: Estimate, parts: Mapping[str, PeakPart], most: Mapping[str, int]
) -> str:
    """Explain two common rules of thumb and why they are off."""
    batch = estimate.batch
    if not batch or bytes_of(parts, "activation") < _MIN_ACTIVATIONS * estimate.peak_allocated:
        return ""
    activations = max(bytes_of(parts, "activation"), most.get("activation", 0))
    kept = sum(max(bytes_of(parts, role), most.get(role, 0)) for role in ("parameter", "optimizer"))
    kept += bytes_of(parts, "parameter") + bytes_of(parts, "input")
    once, twice = kept + activations // batch, kept + 2 * activations
    return (
        "Two common rules of thumb are wrong here. Parameters, gradients, optimizer state, inputs"
        f" and the activations of one item make {size(once)}: too little, as activations are kept"
        f" for all {batch:,} items. Counting the activations of the batch twice, for their"
        f" gradients, makes {size(twice)}: but each of these gradients is freed once the layer"
        f" before it has its own. Allocated at the peak is {size(estimate.peak_allocated)}."
    )


def _sum(estimate: Estimate, parts: Mapping[str, PeakPart]) -> Table:
    columns = (Column("", "text"), Column("Bytes"), Column("Size"), Column("The sum", "text"))
    rows = (
        Row(
            (row.sign, f"{row.nbytes:,}", size(row.nbytes), row.label),
            state="sum" if row.sign == "=" else "",
        )
        for row in sum_rows(estimate, parts)
    )
    return Table(columns, tuple(rows))
