"""Tensors as a treemap: device, role, path of the module, tensor; drawn by plotly."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorlens.render.colours import ROLE_COLOURS
from tensorlens.render.figures import counted, size
from tensorlens.render.html.templates import environment
from tensorlens.render.source import printable, shortened
from tensorlens.render.view import View
from tensorlens.tensors.present.inventory import TensorRow, inventories
from tensorlens.tensors.snapshot import Snapshot

_LEAVES = 500
_LABEL = 60
_DEEPEST = 12
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


@dataclass(frozen=True, slots=True)
class Leaf:
    """A box that has no others in it."""

    path: tuple[str, ...]
    """Device, role, then the path of the module and the box's own name."""
    nbytes: int
    text: str = ""
    count: int = 1
    """How many tensors it stands for."""


def treemap(snapshot: Snapshot, view: View) -> str:
    """Return a snapshot's treemap with all that draws it, or a line on how to have one.

    The largest 500 tensors and families have boxes of their own; the others share one in each role.
    """
    everything = View(top=None, roles=view.roles, devices=view.devices)
    return treemap_markup(
        [
            Leaf((device.device, row.first.role, *_path(row)), row.after, _text(row), row.count)
            for device in inventories(snapshot, everything)
            for row in device.rows
            if device.is_memory and row.after
        ]
    )


def treemap_markup(leaves: Sequence[Leaf]) -> str:
    """Return a treemap with all that draws it, or a line on how to have one; empty for no leaf.

    The largest 500 have boxes of their own; the others share one in each role.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        return environment().get_template("treemap.html").render(figure=None)
    if not leaves:
        return ""
    return (
        environment()
        .get_template("treemap.html")
        .render(figure=as_script(_figure(leaves)), script=get_plotlyjs())
    )


def _figure(leaves: Sequence[Leaf]) -> dict[str, Any]:
    """Return plotly's description of the treemap; the values of a box's parts add up to it."""
    ordered = sorted(leaves, key=lambda leaf: -leaf.nbytes)
    tree = _Tree()
    for leaf in ordered[:_LEAVES]:
        tree.leaf(leaf.path, leaf.nbytes, leaf.text, _colour(leaf))
    others: dict[tuple[str, ...], list[Leaf]] = {}
    for leaf in ordered[_LEAVES:]:
        others.setdefault(leaf.path[:2], []).append(leaf)
    for role, rest in others.items():
        # a blank in front: no tensor is called that
        label = f" {counted(sum(leaf.count for leaf in rest), 'smaller tensor')}"
        tree.leaf((*role, label), sum(leaf.nbytes for leaf in rest), "", _colour(rest[0]))
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


def _colour(leaf: Leaf) -> str:
    return ROLE_COLOURS.get(leaf.path[1], ROLE_COLOURS["other"])


def box_path(name: str, module: str | None, count: int, number: int) -> tuple[str, ...]:
    """Return the module's path and the tensor's name; the last part is the tensor's alone.

    Args:
        name: what the tensor is called.
        module: the path of the module it was made in.
        count: how many tensors of the name there are.
        number: what tells it from others of the name.
    """
    name = printable(name) or "(no name)"
    parts = _PARTS.findall(name) or [name]
    module = printable(module or "")
    if module:
        parts = [*(_PARTS.findall(module) or [module]), name]
    # tensors of one name are told apart, and a tensor from a module that is called like it
    own = f"{parts[-1]} x {count:,}" if count > 1 else parts[-1]
    return (*parts[:-1][:_DEEPEST], f"{own}\0{number:x}")


def _path(row: TensorRow) -> tuple[str, ...]:
    return box_path(row.name, row.first.module, row.count, row.first.storage)


def _label(part: str) -> str:
    # plotly takes a label for HTML
    return html.escape(shortened(part.partition("\0")[0], _LABEL, "…"))


def _text(row: TensorRow) -> str:
    return printable(f"{row.name}, {row.first.dtype} {row.shape}".rstrip())


def as_script(figure: dict[str, Any]) -> str:
    """Return JSON that cannot end the script it stands in."""
    text = json.dumps(figure)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
