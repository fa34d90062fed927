"""Costs by line: the backward pass by forward line and module, growth, churn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tensorlens.recording.analysis.event_index import EventIndex, Place, PlaceTable, event_index
from tensorlens.recording.analysis.instants import largest_sums, roles_of, row_at
from tensorlens.recording.analysis.levels import chosen, device_peak, residents
from tensorlens.recording.analysis.roles import Roles
from tensorlens.recording.moments import BackwardCost, Churn, Growth
from tensorlens.records.events import ALLOC, FREE
from tensorlens.records.tensors import SourceLine

if TYPE_CHECKING:
    from tensorlens.recording.recordings import Recording

_K = TypeVar("_K", bound=Hashable)


@dataclass(slots=True)
class _Line:
    nbytes: int = 0
    blocks: int = 0
    kept: int = 0
    resident: int = 0
    peak: int = 0
    gradients: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, int] = field(default_factory=dict)
    alloc_sites: dict[SourceLine, int] = field(default_factory=dict)
    model_lines: dict[SourceLine, int] = field(default_factory=dict)


def backward(recording: Recording, device: str | None = None) -> tuple[BackwardCost, ...]:
    """Return what was handed out in backward by the line it is charged to, largest first.

    The bytes of all lines are all that was handed out in the phase backward. A block was kept if
    it was not freed before the backward pass ended that it is from.
    """
    number = None if device is None else recording.log.devices.index(chosen(recording, device))
    roles, of = roles_of(recording), event_index(recording)
    lines: dict[SourceLine | None, _Line] = {}
    line_of = PlaceTable(lambda place: lines.setdefault(of.charged[place], _Line()))
    node_of = PlaceTable(lambda place: _node(of, place))
    for row, allocates in _rows(of, number):
        place = of.place(row)
        line = line_of[place]
        size = of.log.size[row]
        if not allocates:
            line.resident -= size
            continue
        line.resident += size
        line.peak = max(line.peak, line.resident)
        line.nbytes += size
        line.blocks += 1
        line.kept += 0 if of.within_phase(row) else size
        _count(line.nodes, node_of[place], size)
        site = of.custom[place]
        if site is not None:
            _count(line.alloc_sites, site, size)
        model = of.model[place]
        if model is not None:
            _count(line.model_lines, model, size)
        name = _gradient(roles, row)
        if name is not None:
            _count(line.gradients, name, size)
    ordered = sorted(lines.items(), key=lambda each: (-each[1].nbytes, str(each[0])))
    return tuple(
        BackwardCost(
            line=line,
            nbytes=cost.nbytes,
            blocks=cost.blocks,
            kept=cost.kept,
            peak=cost.peak,
            gradients=largest_sums(cost.gradients.items()),
            nodes=largest_sums(cost.nodes.items()),
            alloc_sites=largest_sums(cost.alloc_sites.items()),
            model_lines=largest_sums(cost.model_lines.items()),
        )
        for line, cost in ordered
    )


def backward_calls(recording: Recording, device: str | None = None) -> dict[SourceLine, int]:
    """Return what was handed out in backward by line, what a line calls included.

    The largest come first. Bytes count for the line of :func:`backward` and for each of the user's
    lines that called it, as they do in a table of lines.
    """
    number = None if device is None else recording.log.devices.index(chosen(recording, device))
    of = event_index(recording)
    made = largest_sums((of.place(row), size) for row, size in _allocations(of, number))
    return largest_sums((line, size) for place, size in made.items() for line in of.calls[place])


def backward_modules(recording: Recording, device: str | None = None) -> dict[str | None, int]:
    """Return what was handed out in backward by the module whose forward it goes back to.

    The largest come first; None gathers what belongs to no module. The bytes of all are those of
    :func:`backward`.
    """
    number = None if device is None else recording.log.devices.index(chosen(recording, device))
    of = event_index(recording)
    return largest_sums((of.module[of.place(row)], size) for row, size in _allocations(of, number))


def _allocations(of: EventIndex, device: int | None) -> Iterator[tuple[int, int]]:
    """Give the allocations made in backward, with their bytes."""
    return ((row, of.log.size[row]) for row, allocates in _rows(of, device) if allocates)


def _rows(of: EventIndex, device: int | None) -> Iterator[tuple[int, bool]]:
    """Give the allocations made in backward, again when they are freed, in order."""
    log, phase = of.log, of.phase
    made: set[int] = set()
    columns = zip(log.kind, log.device, log.pair, of.places(), strict=True)
    for row, (kind, here, pair, place) in enumerate(columns):
        if kind == ALLOC:
            if phase[place] == "backward" and (device is None or here == device):
                made.add(row)
                yield row, True
        elif kind == FREE and pair in made:
            made.discard(pair)
            yield pair, False


def _node(of: EventIndex, place: Place) -> str:
    """Return what ran: the node, or the operator where a node computes forward again."""
    context = of.context(place)
    operator = context.outer or context.op
    found = (operator, context.node) if of.computed_again(place) else (context.node, operator)
    return found[0] or found[1] or "not recorded"


def _gradient(roles: Roles, row: int) -> str | None:
    name = roles.named(row)
    return None if name is None or roles.role(row) != "gradient" else name


def _count(sums: dict[_K, int], key: _K, nbytes: int) -> None:
    sums[key] = sums.get(key, 0) + nbytes


def growth(
    recording: Recording, start: str | int | None = None, end: str | int | None = None
) -> tuple[Growth, ...]:
    """Return what was resident more at ``end`` than at ``start``, by line and role, on all devices.

    What did not change in bytes nor in blocks is left out; the bytes add up to the whole change.
    """
    log = recording.log
    first = -1 if start is None else row_at(log, start, last=False)
    final = len(log) - 1 if end is None else row_at(log, end)
    before, after = residents(log, None, first), residents(log, None, final)
    stayed = set(before).intersection(after)
    roles, of = roles_of(recording), event_index(recording)
    nbytes: Counter[tuple[SourceLine | None, str]] = Counter()
    blocks: Counter[tuple[SourceLine | None, str]] = Counter()
    for sign, rows in ((-1, before), (1, after)):
        for row in rows:
            if row not in stayed:
                key = of.charged[of.place(row)], roles.role(row)
                nbytes[key] += sign * log.size[row]
                blocks[key] += sign
    found = (Growth(*key, nbytes[key], blocks[key]) for key in blocks)
    changed = (each for each in found if each.nbytes or each.blocks)
    return tuple(sorted(changed, key=lambda each: (-each.nbytes, str(each.line), each.role)))


def churn(recording: Recording, device: str | None = None) -> Churn:
    """Return how many bytes a device handed out, and its peak, by the events that were kept."""
    device, log, of = chosen(recording, device), recording.log, event_index(recording)
    number = log.devices.index(device)
    columns = enumerate(zip(log.kind, log.device, log.size, strict=True))
    made = [(row, size) for row, (kind, here, size) in columns if kind == ALLOC and here == number]
    return Churn(
        device=device,
        handed_out=sum(size for _, size in made),
        allocations=len(made),
        peak=device_peak(recording, device)[0],
        by_line=largest_sums((of.charged[of.place(row)], size) for row, size in made),
    )
