"""What changed between two snapshots, as text."""

from __future__ import annotations

from tensorlens.census.present.headlines import change_headline
from tensorlens.census.present.inventory import ChangeSection, devices_changed, is_memory, sections
from tensorlens.census.present.ledger_lines import ledger_change_lines
from tensorlens.census.present.tensor_lines import tensor_lines
from tensorlens.records.differences import Difference
from tensorlens.render.figures import counted, size
from tensorlens.render.text.page import Page, aligned, ruled


def difference_parts(difference: Difference, page: Page) -> list[str]:
    """Return the parts of the report: header, then several per device."""
    process = f", {page.shown(difference.process)}" if difference.process else ""
    header = page.wrapped(f"What changed in memory{process}", "")
    for note in difference.notes:
        header += page.wrapped("  note: ", page.shown(note))
    if not any(changes for _, changes in difference.kinds()):
        header.append("  no tensor appeared, went or changed its size")
    found = ["\n".join(header)]
    hidden = []
    for device in devices_changed(difference):
        if page.view.shows_device(device):
            found += _device(difference, device, page)
        else:
            hidden.append(f"{page.shown(device)} ({_change(difference, device)})")
    if hidden:
        found.append("\n".join(page.wrapped("Not shown: ", ", ".join(hidden))))
    return found


def _change(difference: Difference, device: str) -> str:
    change = sum(role.change for role in difference.roles if role.device == device)
    return size(change, signed=True)


def _device(difference: Difference, device: str, page: Page) -> list[str]:
    head = page.wrapped(f"{page.shown(device)}  ", change_headline(difference, device))
    if not is_memory(device):
        return ["\n".join(head)]
    found = ["\n".join(head + _roles(difference, device, page))]
    found += ["\n".join(_section(each, page)) for each in sections(difference, device, page.view)]
    ledger = difference.ledger.get(device)
    if ledger is not None:
        found.append("\n".join(ledger_change_lines(ledger, page)))
    return found


def _roles(difference: Difference, device: str, page: Page) -> list[str]:
    cells = [["Role", "Before", "After", "Change"]]
    for role in difference.roles:
        if role.device == device:
            sizes = (size(role.before), size(role.after), size(role.change, signed=True))
            cells.append([role.role, *sizes])
    if len(cells) == 1:
        return []
    return ruled(aligned(cells, (False, True, True, True), 2), page, 2)


def _section(section: ChangeSection, page: Page) -> list[str]:
    title = "changed size" if section.kind == "grown" else section.kind
    head = f"  {counted(section.count)} {title}, {size(section.nbytes, signed=True)}"
    return [head, *tensor_lines(section.rows, section.hidden, page, kind=section.kind)]
