"""Gradients that are there while nobody needs them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorlens.frameworks.step_facts import ZERO_GRAD
from tensorlens.planning.suggest.candidates import Candidate
from tensorlens.planning.suggest.recorded_steps import Scene, Span
from tensorlens.records.events import FREE, START

_ACCUMULATES = "AccumulateGrad"


def set_to_none(scene: Scene) -> Iterator[Candidate]:
    """Give the change to gradients that are freed where they are filled with zeros now.

    A gradient goes at each ``zero_grad()``. What the next backward pass computes for it, and frees
    after it has been added to the zeros, becomes the gradient, until the next ``zero_grad()``.
    """
    facts = scene.facts
    if facts is not None and facts.sets_to_none is not False:
        return
    zeroed = _zeroed(scene)
    spans = [*map(Span, zeroed, [*zeroed[1:], len(scene.log)])]
    added = [[*_accumulated(scene, span)] for span in spans]
    # those of another model that is there as well are not added to
    sizes = {scene.log.size[row] for rows in added for row in rows}
    kept = [
        row
        for row in _gradients(scene)
        if _between(zeroed, row + 1, scene.end(row))
        and (scene.log.kind[row] != START or scene.log.size[row] in sizes)
    ]
    if not kept:
        return
    replay = scene.replay()
    for row in kept:
        replay.free(row, zeroed[bisect_left(zeroed, row + 1)])
    for span, rows in zip(spans, added, strict=True):
        wanted = Counter(scene.log.size[row] for row in kept if row < span.begin < scene.end(row))
        for row in rows:
            if wanted[scene.log.size[row]] > 0:
                wanted[scene.log.size[row]] -= 1
                replay.free(row, span.end)
    yield Candidate(
        kind="set_to_none",
        change="set gradients to None",
        what=f"{len(kept):,} gradients that stay while forward runs",
        code="optimizer.zero_grad(set_to_none=True)",
        peak=replay.peak()[0],
        cost="none; a parameter that backward does not reach has no gradient then, in place of 0",
        settings={"set_to_none": True},
    )


def zero_before_forward(scene: Scene) -> Iterator[Candidate]:
    """Give the change of freeing gradients before forward, where it is done after it now."""
    replay, moved = scene.replay(), 0
    for row in _gradients(scene):
        end = scene.end(row)
        step = next((span for span in scene.steps if end in span and row < span.begin), None)
        if step is None or scene.phase(end) == "optimizer":
            continue
        first = bisect_left(scene.forward_rows, step.begin)
        if first < len(scene.forward_rows) and scene.forward_rows[first] < end:
            replay.free(row, step.begin)
            moved += 1
    if moved:
        yield Candidate(
            kind="zero_grad",
            change="zero_grad() before forward",
            what="gradients of the last step that stay while forward runs",
            code=(
                "# the first line of the step, before the model is called\noptimizer.zero_grad()"
            ),
            peak=replay.peak()[0],
            cost="none",
            act=_gradients_first,
        )


def _gradients_first(make_step: Callable[[], Any]) -> Any:
    # imported where the program runs: here torch need not be
    from tensorlens.frameworks.torch.gradients_first import gradients_first

    return gradients_first(make_step)


def _gradients(scene: Scene) -> list[int]:
    """Return the gradients that outlive the backward pass that made them."""
    return [
        row
        for row in scene.allocations()
        if scene.role(row) == "gradient"
        and (scene.end(row) == len(scene.log) or scene.phase(scene.end(row)) != "backward")
    ]


def _zeroed(scene: Scene) -> list[int]:
    """Return the rows before which gradients are zeroed: by marks, else where steps begin."""
    if scene.facts is not None:
        return sorted(set(scene.marks(ZERO_GRAD)))
    return [span.begin for span in scene.steps[1:]]


def _between(rows: Sequence[int], first: int, last: int) -> bool:
    place = bisect_left(rows, first)
    return place < len(rows) and rows[place] < last


def _accumulated(scene: Scene, span: Span) -> Iterator[int]:
    """Give what was computed in a span and freed after it had been added to a gradient."""
    log, study = scene.log, scene.study
    for row in range(span.begin, span.end):
        made = log.pair[row]
        if log.kind[row] != FREE or log.device[row] != scene.number or made < span.begin:
            continue
        node = study.context(study.place(row)).node
        if node is not None and node.endswith(_ACCUMULATES):
            yield made
