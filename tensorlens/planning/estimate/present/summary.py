"""What an estimate tells, as plain data for other programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tensorlens.planning.estimate.present.needs import judged, peak_block, peak_step, rungs
from tensorlens.planning.estimate.present.peak_parts import peak_parts
from tensorlens.planning.estimate.result import SCHEMA, VERSION, Estimate, Range
from tensorlens.recording.present.summary import (
    by_line_data,
    by_module_data,
    line_data,
    moment_data,
)


def estimate_summary(estimate: Estimate) -> dict[str, Any]:
    """Return dicts, lists, texts and integers; sizes in bytes.

    A range is a dict of ``low``, ``point`` (the likeliest) and ``high``. ``allocated``,
    ``reserved``, ``least_capacity``, ``apart`` and ``needed`` are ranges, as are the ``nbytes`` of
    the ``terms``; ``lower`` and ``upper`` bound what the process takes from the card without its
    context, None where ``unsimulated`` says why no bounds are known. ``fits`` has ``capacity`` and
    ``verdict`` (``fits``, ``tight``, ``does not fit``), of what was asked or else of the card's
    memory; None where there is neither. ``largest`` has the answer of
    :func:`tensorlens.max_batch`, where the estimate is of that.

    ``peak`` has what ``moment_data`` of :mod:`tensorlens.recording.present.summary` gives, and
    ``step``, ``phase``, ``line``, ``module`` and ``op`` of the allocation that made it.
    ``by_role``, ``by_line`` and ``by_module`` add up to the likeliest peak, remainders included,
    and so do ``parts``, which tell the roles further apart. ``sum`` goes on from the parts to what
    the card must have: each row has a ``sign``, one of ``+``, ``-``, ``=`` or, for the first,
    empty.

    A line is a dict of ``filename``, ``lineno`` and ``function``. What is not known is None.
    """
    card, fit = estimate.card, judged(estimate)
    parts = peak_parts(estimate)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "program": estimate.program,
        "device": estimate.device,
        "card": None if card is None else asdict(card),
        "settings": estimate.settings,
        "versions": None if estimate.versions is None else dict(estimate.versions),
        "approximate": estimate.approximate,
        "unsimulated": estimate.unsimulated,
        "batch": estimate.batch,
        "largest": None if estimate.largest is None else asdict(estimate.largest),
        "capacity": estimate.capacity,
        "fits": None if fit is None else {"capacity": fit.capacity, "verdict": fit.verdict},
        "allocated": _range(estimate.allocated),
        "reserved": _range(estimate.reserved),
        "least_capacity": _range(estimate.least_capacity),
        "apart": _range(estimate.apart),
        "needed": _range(estimate.needed),
        "lower": estimate.lower,
        "upper": estimate.upper,
        "steps": [asdict(step) for step in estimate.steps],
        "terms": [asdict(term) for term in estimate.terms],
        "framework": estimate.framework,
        "formulas": [asdict(each) for each in estimate.formulas],
        "warnings": [
            {"text": caution.text, "line": line_data(caution.line)} for caution in estimate.warnings
        ],
        "peak": _peak(estimate),
        "by_role": dict(estimate.by_role),
        "by_line": by_line_data(estimate.by_line),
        "by_module": by_module_data(estimate.by_module),
        "parts": [
            {"kind": part.kind, "label": part.label, "nbytes": part.nbytes, "blocks": part.blocks}
            for part in parts.values()
        ],
        "sum": [asdict(rung) for rung in rungs(estimate, parts)],
    }


def _range(nbytes: Range) -> dict[str, int]:
    return asdict(nbytes)


def _peak(estimate: Estimate) -> dict[str, Any]:
    block = peak_block(estimate)
    line = None if block is None else block.charged or block.born
    return {
        **moment_data(estimate.peak),
        "step": peak_step(estimate),
        "phase": None if block is None else block.phase,
        "line": line_data(line),
        "module": None if block is None else block.module,
        "op": None if block is None else block.op,
    }
