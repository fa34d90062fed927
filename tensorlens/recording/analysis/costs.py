"""Costs by line: the backward pass by forward line and module, growth, churn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from tensorlens.recording.analysis import BackwardCost, Churn, LineGrowth
from tensorlens.recording.analysis.event_index import event_index
from tensorlens.recording.analysis.instants import largest_sums, row_at
from tensorlens.recording.analysis.levels import device_or_highest, device_peak, residents
from tensorlens.recording.analysis.roles import roles_of
from tensorlens.recording.analysis.sites import Site
from tensorlens.records.logs.events import ALLOC, FREE
from tensorlens.records.tensors import SourceLine

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording


@dataclass(slots=True)
class _Line:
    nbytes: int = 0
    blocks: int = 0
    kept: int = 0
    resident: int = 0
    peak: int = 0
    gradients: Counter[str] = field(default_factory=Counter)
    nodes: Counter[str] = field(default_factory=Counter)
    model_lines: Counter[SourceLine] = field(default_factory=Counter)


def backward(recording: Recording, device: str | None = None) -> tuple[BackwardCost, ...]:
    """Return the cost in backward of each line, largest first.

    Together they are all bytes allocated in the phase backward. A block counts as kept if it
    outlived its backward pass.
    """
    roles, index = roles_of(recording), event_index(recording)
    lines: dict[SourceLine | None, _Line] = {}
    line_of = cache(lambda site: lines.setdefault(site.charged, _Line()))
    node_of = cache(_node)
    for row, allocates in _rows(recording, device):
        site = index.site(row)
        line = line_of(site)
        size = index.log.size[row]
        if not allocates:
            line.resident -= size
            continue
        line.resident += size
        line.peak = max(line.peak, line.resident)
        line.nbytes += size
        line.blocks += 1
        line.kept += 0 if index.within_phase(row) else size
        line.nodes[node_of(site)] += size
        if site.model is not None:
            line.model_lines[site.model] += size
        if roles.role(row) == "gradient" and (name := roles.named(row)) is not None:
            line.gradients[name] += size
    ordered = sorted(lines.items(), key=lambda each: (-each[1].nbytes, str(each[0])))
    return tuple(
        BackwardCost(
            *(line, cost.nbytes, cost.blocks, cost.kept, cost.peak),
            gradients=largest_sums(cost.gradients.items()),
            nodes=largest_sums(cost.nodes.items()),
            model_lines=largest_sums(cost.model_lines.items()),
        )
        for line, cost in ordered
    )


def backward_calls(recording: Recording, device: str) -> dict[SourceLine, int]:
    """Return the bytes allocated in backward by line, callees included, largest first.

    Bytes count for the line of :func:`backward` and for each of the user's lines that called it, as
    in a table of lines.
    """
    index = event_index(recording)
    made = largest_sums((index.site(row), size) for row, size in _allocations(recording, device))
    callers = index.table.callers
    return largest_sums((line, size) for site, size in made.items() for line in callers(site))


def backward_modules(recording: Recording, device: str | None = None) -> dict[str | None, int]:
    """Return the bytes allocated in backward by forward module, largest first; None: no module.

    They add up to those of :func:`backward`.
    """
    index, made = event_index(recording), _allocations(recording, device)
    return largest_sums((index.site(row).module, size) for row, size in made)


def _allocations(recording: Recording, device: str | None) -> Iterator[tuple[int, int]]:
    """Yield the allocations of backward, with their bytes."""
    sizes = recording.log.size
    return ((row, sizes[row]) for row, allocates in _rows(recording, device) if allocates)


def _rows(recording: Recording, device: str | None) -> Iterator[tuple[int, bool]]:
    """Yield the allocations and frees of blocks made in backward, in order."""
    index, log = event_index(recording), recording.log
    number = None if device is None else log.devices.index(device_or_highest(recording, device))
    made: set[int] = set()
    columns = zip(log.kind, log.device, log.pair, index.sites(), strict=True)
    for row, (kind, here, pair, site) in enumerate(columns):
        if kind == ALLOC:
            if site.phase == "backward" and number in (None, here):
                made.add(row)
                yield row, True
        elif kind == FREE and pair in made:
            made.discard(pair)
            yield pair, False


def _node(site: Site) -> str:
    """Return the node that ran, or the operator if a node recomputes forward."""
    context = site.context
    operator = context.outer or context.op
    found = (operator, context.node) if site.computed_again else (context.node, operator)
    return found[0] or found[1] or "not recorded"


def growth(
    recording: Recording, start: str | int | None = None, end: str | int | None = None
) -> tuple[LineGrowth, ...]:
    """Return the growth from ``start`` to ``end`` by line and role, on all devices.

    Lines without a change are left out; the bytes add up to the whole change.
    """
    log = recording.log
    first = -1 if start is None else row_at(log, start, last=False)
    final = len(log) - 1 if end is None else row_at(log, end)
    before, after = residents(log, None, first), residents(log, None, final)
    stayed = set(before).intersection(after)
    roles, index = roles_of(recording), event_index(recording)
    nbytes: Counter[tuple[SourceLine | None, str]] = Counter()
    blocks: Counter[tuple[SourceLine | None, str]] = Counter()
    for sign, rows in ((-1, before), (1, after)):
        for row in rows:
            if row not in stayed:
                key = index.site(row).charged, roles.role(row)
                nbytes[key] += sign * log.size[row]
                blocks[key] += sign
    found = (LineGrowth(*key, nbytes[key], blocks[key]) for key in blocks)
    changed = (each for each in found if each.nbytes or each.blocks)
    return tuple(sorted(changed, key=lambda each: (-each.nbytes, str(each.line), each.role)))


def churn(recording: Recording, device: str | None = None) -> Churn:
    """Return the bytes that a device handed out and its peak, from the events kept."""
    device, log, index = device_or_highest(recording, device), recording.log, event_index(recording)
    number = log.devices.index(device)
    columns = enumerate(zip(log.kind, log.device, log.size, strict=True))
    made = [(row, size) for row, (kind, here, size) in columns if kind == ALLOC and here == number]
    return Churn(
        device=device,
        handed_out=sum(size for _, size in made),
        allocations=len(made),
        peak=device_peak(recording, device)[0],
        by_line=largest_sums((index.site(row).charged, size) for row, size in made),
    )
