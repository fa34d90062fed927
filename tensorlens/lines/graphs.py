"""Line tables of functions that ran only to build graphs: what their nodes did."""

from __future__ import annotations

from tensorlens.frameworks.traced_code import NodeFigures, TracedFigures
from tensorlens.lines.functions import ProfiledFunction, signature
from tensorlens.lines.report import FunctionLines, Line, LineMemory

COMPILED = "compiled by {}: its lines do not run"


def graph_table(function: ProfiledFunction, figures: TracedFigures) -> FunctionLines:
    """Return the table of the graphs that have nodes of a function's lines."""
    source = dict(enumerate(function.source, function.first_line))
    whole = {figures.device: _memory(figures.whole, figures.growth)}
    notes = list(figures.notes)
    if figures.compiler is not None:
        first = function.first_line
        lines = [Line(first, signature(function), figures.whole.hits, memory=whole)]
        notes.insert(0, COMPILED.format(figures.compiler))
    else:
        numbers = sorted({*source, *figures.lines, *figures.backward})
        lines = [_line(number, source.get(number, ""), figures) for number in numbers]
    if function.source_note:
        notes.append(function.source_note)
    if function.account.failure:
        notes.append(function.account.failure)
    return FunctionLines(
        name=function.name,
        qualname=function.qualname,
        module=function.module,
        filename=function.filename,
        first_line=function.first_line,
        calls=figures.calls,
        lines=tuple(lines),
        note="; ".join(notes) or None,
        execution="graph" if figures.compiler is None else "XLA",
        whole=whole,
    )


def _line(number: int, source: str, figures: TracedFigures) -> Line:
    forward, backward = figures.lines.get(number), figures.backward.get(number)
    if forward is None and backward is None:
        return Line(number, source)
    hits = max(each.hits for each in (forward, backward) if each is not None)
    has_gradients = bool(figures.backward)
    gradients = backward or (_NOTHING if has_gradients else None)
    memory = _memory(forward or _NOTHING, figures.growth, gradients)
    return Line(number, source, hits, memory={figures.device: memory})


_NOTHING = NodeFigures(0, 0, 0, 0, 0, 0)


def _memory(forward: NodeFigures, grown: int, backward: NodeFigures | None = None) -> LineMemory:
    return LineMemory(
        allocated=forward.allocated,
        peak=forward.peak,
        reserved=None,
        net=forward.net,
        net_max=forward.net_max,
        net_first=forward.net_first,
        backward=None if backward is None else backward.allocated,
        growth=max(0, min(forward.net, grown)),
    )
