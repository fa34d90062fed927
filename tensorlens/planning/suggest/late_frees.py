"""Tensors and gradients that outlive their last use."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from tensorlens.planning.step_facts import BACKWARD, UnusedVariable
from tensorlens.planning.suggest.recorded_steps import TENSORFLOW, TORCH, RecordedSteps
from tensorlens.planning.suggest.result import Suggestion
from tensorlens.records.logs.events import START
from tensorlens.records.tensors import SourceLine
from tensorlens.render.source import short_line

_LIST_INDEX = re.compile(r"\[-?\d+\]$")
_COPIES = {TORCH: ".item(), .cpu()", TENSORFLOW: "float(...), .numpy()"}
_LASTING_ROLES = ("parameter", "buffer", "gradient", "optimizer", "input")


def _release_text(variable: UnusedVariable, unused: Sequence[UnusedVariable]) -> str:
    """Return the text of a change; it names the function if several have such a variable."""
    is_only = [other.name for other in unused].count(variable.name) == 1
    name = variable.name if is_only else f"{variable.name} of {variable.function}()"
    return f"release {name} before backward"


def step_leftovers(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield a change for each variable whose tensors, made by forward, outlive the step."""
    kept = _outliving_blocks(recorded)
    groups: dict[str, list[tuple[int, int]]] = {}
    by_graph = any(_is_kept_by_graph(recorded, row) for row, _ in kept)
    for row, until in kept:
        # tensors that a graph keeps go with the variable that keeps the graph
        groups.setdefault("" if by_graph else _holder_key(recorded, row), []).append((row, until))
    for found in groups.values():
        replay = recorded.replay()
        name, line = _largest_variable(recorded, [row for row, _ in found])
        for row, until in found:
            # a detached variable stays, without its graph
            if not by_graph or _is_kept_by_graph(recorded, row) or not recorded.roles.named(row):
                replay.free(row, until)
        is_list = any(_LIST_INDEX.search(recorded.roles.named(row) or "") for row, _ in found)
        yield recorded.suggestion(
            kind="kept",
            change=f"detach {name}" if by_graph else f"release {name} after the step",
            what=f"made at {line}, still there in the next step" if line else "of the step before",
            code=_code(recorded, name, by_graph=by_graph, is_list=is_list),
            peak=replay.peak(),
            cost="none",
        )


def backward_leftovers(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield the release of each variable that is unused but lives through backward."""
    begins = recorded.marks(BACKWARD)
    unused = recorded.facts.unused_variables
    for each in unused:
        place = recorded.block_at(each.address, begins[-1]) if begins else None
        if place is None:
            continue
        replay = recorded.replay()
        for row in recorded.similar_blocks(place):
            begin = next((begin for begin in begins if row < begin < recorded.end(row)), None)
            if begin is not None:
                replay.free(row, begin)
        line = SourceLine(each.filename, each.lineno, each.function)
        yield recorded.suggestion(
            kind="kept",
            change=_release_text(each, unused),
            what=f"a variable of {each.function}() that backward does not need",
            code=f"# before {short_line(line)}\ndel {each.name}",
            peak=replay.peak(),
            cost="none",
        )


def _outliving_blocks(recorded: RecordedSteps) -> list[tuple[int, int]]:
    """Return blocks that outlive the step whose forward made them, with the row where it ends.

    A block that only the first step makes is a cache and is left out. A block from before the
    recording counts if a census called it an activation and it is freed in the recording.
    """
    log = recorded.log
    if len(recorded.steps) < 2:
        return [
            (row, 0)
            for row in recorded.allocations()
            if log.kind[row] == START and recorded.role(row) == "activation" and log.pair[row] >= 0
        ]
    found = [
        (row, span.stop) for span in recorded.steps[1:-1] for row in _leftovers(recorded, span)
    ]
    made_again = {_holder_key(recorded, row) for row, _ in found}
    first = recorded.steps[0]
    for row in _leftovers(recorded, first):
        comes_again = any(other in recorded.steps[1] for other in recorded.similar_blocks(row))
        if comes_again or _holder_key(recorded, row) in made_again:
            found += [(row, first.stop)]
    return found


def _leftovers(recorded: RecordedSteps, step: range) -> Iterator[int]:
    """Yield blocks of a step's forward that outlive the step, without those of lasting roles."""
    for row in recorded.allocations(step):
        if recorded.phase(row) == "forward" and recorded.end(row) >= step.stop:
            if recorded.role(row) not in _LASTING_ROLES:
                yield row


def _is_kept_by_graph(recorded: RecordedSteps, row: int) -> bool:
    """Tell whether autograd's graph holds a block, and no variable."""
    name = recorded.roles.named(row)
    return name is not None and "Backward" in name.rpartition(": ")[2]


def _holder_key(recorded: RecordedSteps, row: int) -> str:
    """Return the variable that holds a block, a list for its items; else the line that made it."""
    name = recorded.roles.named(row)
    if name is None:
        return str(recorded.index.site(row).born)
    return _LIST_INDEX.sub("", name)


def _largest_variable(recorded: RecordedSteps, rows: Iterable[int]) -> tuple[str, str]:
    """Return the name of the largest variable that no graph holds, and the line that made it.

    The name is ``what is kept`` if there is no such variable.
    """
    ordered = sorted(rows, key=lambda row: -recorded.log.size[row])
    named_rows = [
        row for row in ordered if not _is_kept_by_graph(recorded, row) and recorded.roles.named(row)
    ]
    row = named_rows[0] if named_rows else ordered[0]
    line = recorded.index.site(row).born
    name = recorded.roles.named(row) if named_rows else None
    short = "what is kept" if name is None else _LIST_INDEX.sub("", name.rpartition(": ")[2])
    return short, "" if line is None else short_line(line)


def _code(recorded: RecordedSteps, name: str, *, by_graph: bool, is_list: bool) -> str:
    """Return the code to write; ``name`` is in it if it is a Python name."""
    is_name = all(part.isidentifier() for part in name.split("."))
    if by_graph:
        text = "# before it is kept for the next step: its graph keeps all that made it"
        value = f"[each.detach() for each in {name}]" if is_list else f"{name}.detach()"
        line = f"{name} = {value}"
    else:
        text = (
            f"# at the end of the step, or keep what is needed of it: {_COPIES[recorded.framework]}"
        )
        line = f"del {name}"
    if is_name:
        return f"{text}\n{line}"
    return f"{text}\nstate = state.detach()" if by_graph else text


def zero_grad_change(recorded: RecordedSteps) -> Iterator[Suggestion]:
    """Yield the change that frees gradients before forward, if they are there once it begins."""
    replay, moved = recorded.replay(), 0
    for row in recorded.allocations():
        end = recorded.end(row)
        if recorded.role(row) != "gradient" or end == len(recorded.log):
            continue
        step = next((span for span in recorded.steps if end in span and row < span.start), None)
        if step is None or recorded.phase(end) in ("optimizer", "backward"):
            continue
        first = bisect_left(recorded.forward_rows, step.start)
        if first < len(recorded.forward_rows) and recorded.forward_rows[first] < end:
            replay.free(row, step.start)
            moved += 1
    if moved:
        yield recorded.suggestion(
            kind="zero_grad",
            change="zero_grad() before forward",
            what="gradients of the last step that stay while forward runs",
            code=(
                "# the first line of the step, before the model is called\noptimizer.zero_grad()"
            ),
            peak=replay.peak(),
            cost="none",
        )
