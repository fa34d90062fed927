"""The cost in backward of each forward line, and of each module."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from tensorlens.recording.analysis.devices import chosen
from tensorlens.recording.analysis.event_index import EventIndex, Place, PlaceTable, event_index
from tensorlens.recording.analysis.instants import largest_first, roles_of
from tensorlens.recording.analysis.roles import Roles
from tensorlens.recording.moments import BackwardCost
from tensorlens.recording.recordings import Recording
from tensorlens.records.events import ALLOC, FREE
from tensorlens.records.tensors import SourceLine

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

    Raises:
        UsageError: the recording knows no such device.
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
            gradients=largest_first(cost.gradients),
            nodes=largest_first(cost.nodes),
            alloc_sites=largest_first(cost.alloc_sites),
            model_lines=largest_first(cost.model_lines),
        )
        for line, cost in ordered
    )


def backward_calls(recording: Recording, device: str | None = None) -> dict[SourceLine, int]:
    """Return what was handed out in backward by line, what a line calls included.

    The largest come first. Bytes count for the line of :func:`backward` and for each of the user's
    lines that called it, as they do in a table of lines.

    Raises:
        UsageError: the recording knows no such device.
    """
    number = None if device is None else recording.log.devices.index(chosen(recording, device))
    of = event_index(recording)
    places: dict[Place, int] = {}
    for row, allocates in _rows(of, number):
        if allocates:
            _count(places, of.place(row), of.log.size[row])
    sums: dict[SourceLine, int] = {}
    for place, nbytes in places.items():
        for line in of.calls[place]:
            _count(sums, line, nbytes)
    return largest_first(sums)


def backward_modules(recording: Recording, device: str | None = None) -> dict[str | None, int]:
    """Return what was handed out in backward by the module whose forward it goes back to.

    The largest come first; None gathers what belongs to no module. The bytes of all are those of
    :func:`backward`.

    Raises:
        UsageError: the recording knows no such device.
    """
    number = None if device is None else recording.log.devices.index(chosen(recording, device))
    of = event_index(recording)
    sums: dict[str | None, int] = {}
    for row, allocates in _rows(of, number):
        if allocates:
            _count(sums, of.module[of.place(row)], of.log.size[row])
    return largest_first(sums)


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
