"""A snapshot as a treemap: device, role, path of the module, tensor; drawn by plotly."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass, field
from typing import Any

from tensorlens.records.snapshots import Snapshot, View
from tensorlens.render.figures import size
from tensorlens.render.html.templates import environment
from tensorlens.render.inventory import TensorRow, counted, inventories
from tensorlens.render.source import printable, shortened

_LEAVES = 500
_LABEL = 60
_DEEPEST = 12
_COLOURS = {
    "parameter": "#4e79c5",
    "buffer": "#7fa7c9",
    "gradient": "#b07aa1",
    "optimizer": "#3d9970",
    "activation": "#de8b2c",
    "input": "#c9b458",
    "other": "#8c8c8c",
}
# a key in brackets may hold dots: they are no path
_PARTS = re.compile(r"(?:[^.\[]|\[[^\]]*\])+")


@dataclass(slots=True)
class _Tree:
    """plotly's columns: every box with its size and the box that it is in."""

    ids: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    colours: list[str] = field(default_factory=list)
    numbers: dict[tuple[str, ...], int] = field(default_factory=dict)

    def box(self, path: tuple[str, ...], colour: str) -> int:
        """Return the number of the box at ``path``, made with all around it where missing."""
        number = self.numbers.get(path)
        if number is None:
            parent = str(self.box(path[:-1], colour)) if len(path) > 1 else ""
            number = self.numbers[path] = len(self.ids)
            self.ids.append(str(number))
            self.labels.append(_label(path[-1]))
            self.parents.append(parent)
            self.values.append(0)
            self.texts.append("")
            self.colours.append(colour)
        return number

    def leaf(self, path: tuple[str, ...], nbytes: int, text: str, colour: str) -> None:
        """Add a tensor to its box and to all that it is in."""
        for depth in range(1, len(path) + 1):
            number = self.box(path[:depth], colour if depth > 1 else "rgba(128,128,128,.15)")
            self.values[number] += nbytes
        self.texts[number] = html.escape(text)


def treemap(snapshot: Snapshot, view: View) -> str:
    """Return the treemap with all that draws it, or a line on how to have one.

    The largest 500 tensors and families have boxes of their own; the others share one in each role.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return environment().get_template("treemap.html").render(figure=None)
    figure = _figure(snapshot, view)
    if not figure["ids"]:
        return ""
    return (
        environment()
        .get_template("treemap.html")
        .render(figure=_as_script(figure), script=get_plotlyjs())
    )


def _figure(snapshot: Snapshot, view: View) -> dict[str, Any]:
    """Return plotly's description of the treemap; the values of a box's parts add up to it."""
    everything = View(top=None, roles=view.roles, devices=view.devices)
    rows = [
        (device.device, row)
        for device in inventories(snapshot, everything)
        for row in device.rows
        if device.is_memory and row.after
    ]
    rows.sort(key=lambda each: -each[1].after)
    tree = _Tree()
    for device, row in rows[:_LEAVES]:
        role = row.first.role
        path = (device, role, *_path(row))
        tree.leaf(path, row.after, _text(row), _COLOURS[role])
    others: dict[tuple[str, str], tuple[int, int]] = {}
    for device, row in rows[_LEAVES:]:
        count, nbytes = others.get((device, row.first.role), (0, 0))
        others[device, row.first.role] = (count + row.count, nbytes + row.after)
    for (device, role), (count, nbytes) in others.items():
        # a blank in front: no tensor is called that
        label = f" {counted(count, 'smaller tensor')}"
        tree.leaf((device, role, label), nbytes, "", _COLOURS[role])
    return {
        "type": "treemap",
        "branchvalues": "total",
        "ids": tree.ids,
        "labels": tree.labels,
        "parents": tree.parents,
        "values": tree.values,
        "text": [size(value) for value in tree.values],
        "customdata": tree.texts,
        "marker": {
            "colors": tree.colours,
            "line": {"width": 1, "color": "rgba(255,255,255,.5)"},
        },
        "textinfo": "label+text",
        "hovertemplate": "<b>%{label}</b><br>%{text}<br>%{customdata}<extra></extra>",
    }


def _path(row: TensorRow) -> tuple[str, ...]:
    """Return the module's path and the tensor's name; the last part is the tensor's alone."""
    name = printable(row.name) or "(no name)"
    parts = _PARTS.findall(name) or [name]
    module = printable(row.first.module or "")
    if module:
        parts = [*(_PARTS.findall(module) or [module]), name]
    # tensors of one name are told apart, and a tensor from a module that is called like it
    own = f"{parts[-1]} x {row.count:,}" if row.count > 1 else parts[-1]
    return (*parts[:-1][:_DEEPEST], f"{own}\0{row.first.storage:x}")


def _label(part: str) -> str:
    # plotly takes a label for HTML
    return html.escape(shortened(part.partition("\0")[0], _LABEL, "…"))


def _text(row: TensorRow) -> str:
    return printable(f"{row.name}, {row.first.dtype} {row.first.shape}")


def _as_script(figure: dict[str, Any]) -> str:
    """Return JSON that cannot end the script it stands in."""
    text = json.dumps(figure)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
