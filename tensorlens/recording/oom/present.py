"""Presents an allocation that failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensorlens.frameworks.base import Request
from tensorlens.recording.oom.failure import OutOfMemory, Remedy
from tensorlens.render.blocks import (
    Block,
    Column,
    Fact,
    Heading,
    KeyValues,
    Note,
    Section,
    Table,
    labelled,
)
from tensorlens.render.figures import exact_size, size
from tensorlens.render.shown import View
from tensorlens.tensors.present import device_section
from tensorlens.tensors.present.inventory import DeviceInventory, headline, inventories

_FEW = 10
"""Number of largest tensors shown."""


def blocks(failure: OutOfMemory, view: View) -> Sequence[Block]:
    """Return the request, the remedies, and resident memory on the request's device."""
    device = failure.request.device
    devices = tuple(each for each in failure.snapshot.ledger if each == device)
    view = replace(view, devices=devices, top=_FEW)
    heading = Heading(f"tensorlens: out of memory: {_asked(failure.request)}")
    facts = (*_facts(failure.request), *labelled("note", failure.remarks))
    shown: list[Block] = [Section((heading, KeyValues(facts)))]
    if failure.remedies:
        shown.append(Section((_remedies(failure.remedies),), "Memory that could be freed"))
    shown += [
        _device(inventory, failure.handled, view)
        for inventory in inventories(failure.snapshot, view)
        if inventory.is_memory
    ]
    notes = tuple(Note(note, label="note") for note in failure.snapshot.notes)
    return [*shown, Section(notes)]


def _facts(request: Request) -> Iterator[Fact]:
    who = str(request.line) if request.line else "a line that is not known"
    yield Fact("by", who, request.source or "")
    phase = request.phase if request.phase != "other" else None
    module = f"module {request.module}" if request.module else None
    where = ", ".join(filter(None, (phase, module, request.op)))
    if where:
        yield Fact("in", where)
    if request.nbytes is None:
        # with a size it says no more
        yield Fact("error", request.text)


def _asked(request: Request) -> str:
    where = f" on {request.device}" if request.device else ""
    if request.nbytes is None:
        return f"a request{where} was refused; its size is not known"
    if not request.exact:
        return f"Tried to allocate about {size(request.nbytes)}{where}"
    return f"Tried to allocate {exact_size(request.nbytes)}{where}"


def _remedies(remedies: Sequence[Remedy]) -> Table:
    rows = ((size(each.nbytes), each.text) for each in remedies)
    return Table((Column("Size"), Column("What it is, and what to do", "prose")), tuple(rows))


def _device(inventory: DeviceInventory, handled: bool, view: View) -> Section:
    hidden = tuple(
        replace(each, why="MemReporter().report(top=None) lists all") for each in inventory.hidden
    )
    when = " now, after the error was handled" if handled else ""
    title = f"Resident on {inventory.device}{when}: {headline(inventory)}"
    return replace(device_section(replace(inventory, hidden=hidden), title, view), name="")
