"""A failed allocation as text: the request, what could be freed, what was resident."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorlens.census.present.headlines import headline
from tensorlens.census.present.inventory import DeviceInventory, inventories
from tensorlens.census.present.ledger_lines import ledger_lines
from tensorlens.census.present.snapshot_text import role_lines
from tensorlens.census.present.tensor_lines import tensor_lines
from tensorlens.records.failures import OutOfMemory, Remedy, Request
from tensorlens.render.figures import exact_size, size
from tensorlens.render.source import width
from tensorlens.render.text.page import Page, padded


def failure_parts(failure: OutOfMemory, page: Page) -> list[str]:
    """Return the parts of the report; ``page.view`` chooses what is shown of the snapshot."""
    lines = _request(failure.request, page)
    for remark in failure.remarks:
        lines += page.wrapped("  note   ", page.shown(remark), 9)
    parts = ["\n".join(lines)]
    if failure.remedies:
        parts.append("\n".join(["What could be freed", *_remedies(failure.remedies, page)]))
    for device in inventories(failure.snapshot, page.view):
        if device.is_memory:
            parts += _device(device, failure.handled, page)
    for note in failure.snapshot.notes:
        parts.append("\n".join(page.wrapped("note: ", page.shown(note))))
    return parts


def _request(request: Request, page: Page) -> list[str]:
    lines = page.wrapped("tensorlens: out of memory: ", page.shown(_asked(request)))
    who = str(request.line) if request.line else "a line that is not known"
    lines += page.wrapped("  by     ", page.shown(who), 9)
    if request.source:
        lines += page.wrapped("           ", page.shown(request.source), 13)
    where = [
        text
        for text in (
            request.phase if request.phase != "other" else None,
            f"module {request.module}" if request.module else None,
            request.op,
        )
        if text
    ]
    if where:
        lines += page.wrapped("  in     ", page.shown(", ".join(where)), 9)
    if request.nbytes is None:
        # else it says no more
        lines += page.wrapped("  error  ", page.shown(request.text), 9)
    return lines


def _asked(request: Request) -> str:
    where = f" on {request.device}" if request.device else ""
    if request.nbytes is None:
        return f"a request{where} was refused; its size is not known"
    if not request.exact:
        return f"about {size(request.nbytes)} were asked for{where}"
    return f"{exact_size(request.nbytes)} were asked for{where}"


def _remedies(remedies: Sequence[Remedy], page: Page) -> list[str]:
    sizes = ["?" if each.nbytes is None else size(each.nbytes) for each in remedies]
    room = max(map(width, sizes))
    rows: list[str] = []
    for each, text in zip(sizes, remedies, strict=True):
        start = f"  {padded(each, room, right=True)}  "
        rows += page.wrapped(start, page.shown(text.text), width(start))
    return rows


def _device(device: DeviceInventory, handled: bool, page: Page) -> list[str]:
    hidden = [
        replace(each, why="MemReporter().report(top=None) lists all") for each in device.hidden
    ]
    when = " now, after the error was handled" if handled else ""
    head = page.wrapped(f"Resident on {page.shown(device.device)}{when}: ", headline(device))
    return [
        "\n".join(head + role_lines(device, page)),
        "\n".join(tensor_lines(device.rows, hidden, page)),
        "\n".join(ledger_lines(device.ledger, page)) if device.ledger else "",
    ]
