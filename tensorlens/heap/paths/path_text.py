"""Writes a path for a person: one reference for each thing that has a name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tensorlens.heap import reference_names
from tensorlens.heap.paths import inspection
from tensorlens.heap.paths.inspection import PathStep
from tensorlens.heap.paths.nodes import (
    CLASS,
    CUT,
    GLOBAL,
    LOCAL,
    UNKNOWN,
    NodePath,
    PathNode,
    PathRoot,
)
from tensorlens.heap.paths.reference_text import next_step
from tensorlens.records.names import key_text
from tensorlens.records.references import Reference, ReferencePath


def write(path: NodePath) -> tuple[ReferencePath, str | int]:
    """Return a path as text, and what it begins with: a name, or a function or cell's address."""
    writer = _Writer(path.nodes)
    writer.begin(path.root)
    writer.go_on()
    is_cut = path.root.kind in (UNKNOWN, CUT)
    return ReferencePath(tuple(writer.references), is_cut), writer.beginning


def write_cycle(circle: tuple[PathNode, ...]) -> ReferencePath:
    """Return a cycle as text."""
    writer = _Writer(circle)
    writer.go_on()
    name = inspection.kind_name(circle[0])
    references = map(_plainly, writer.references)
    return ReferencePath((*references, Reference("cycle", name, name)))


@dataclass(slots=True)
class _Writer:
    nodes: tuple[PathNode, ...]
    references: list[Reference] = field(default_factory=list)
    beginning: str | int = 0
    place: int = 0
    is_bare: bool = True
    """Whether nothing but names and functions came so far, which say no more than the next."""

    def begin(self, root: PathRoot) -> None:
        """Write what a path begins with."""
        first = self.nodes[0]
        if root.kind == GLOBAL:
            self._take(_global(root.name, self.nodes))
        elif root.kind == CLASS:
            self._take(_of_class(root.name, self.nodes))
        elif root.kind == LOCAL:
            self._take(PathStep(Reference("local", f"{root.name} (local)"), int(_is_cell(first))))
        elif root.kind == UNKNOWN:
            self._take(PathStep(Reference("unknown", root.name), 0))
            self.is_bare = False
        name = self.references[0].text if self.references else ""
        # a closure may refer to the same cell
        is_cell = root.kind == LOCAL and _is_cell(first)
        self.beginning = first.address if is_cell else f"{name} {first.address}"

    def go_on(self) -> None:
        """Write the rest."""
        while self.place < len(self.nodes) - 1:
            before = self.references[-1] if self.references else None
            step = next_step(self.nodes[self.place :], before)
            if step.begins and self.is_bare:
                self.references.clear()
                self.beginning = self.nodes[self.place + step.begins_at].address
            elif not step.begins and step.reference is not None:
                self.is_bare = False
            self._take(step)

    def _take(self, step: PathStep) -> None:
        self.place += step.taken
        if step.reference is None:
            return
        child = self.nodes[self.place]
        reference = replace(step.reference, type=inspection.kind_name(child))
        if inspection.is_of(child, BaseException):
            kept = _plainly(reference).text
            text = kept if kept.startswith("__") else f"exception kept in {kept}"
            reference = replace(reference, kind="exception", text=text)
        self.references.append(reference)


def _is_cell(node: PathNode) -> bool:
    return node.items is None and reference_names.type_name(node.object) == "<cell>"


def _plainly(reference: Reference) -> Reference:
    """Return an attribute without saying that it is one."""
    return replace(reference, text=reference.text.removesuffix(f" ({reference.kind})"))


def _global(module: str, nodes: tuple[PathNode, ...]) -> PathStep:
    if len(nodes) == 1:
        return PathStep(Reference("global", f"{module or '__main__'} (globals)"), 0)
    key = inspection.key_of(nodes[0], nodes[1])
    name = key if type(key) is str else key_text(key) if inspection.has_key(key) else "?"
    return PathStep(Reference("global", f"{module}.{name} (global)".removeprefix(".")), 1)


def _of_class(name: str, nodes: tuple[PathNode, ...]) -> PathStep:
    if len(nodes) < 2 or not inspection.is_of(nodes[0], dict):
        return PathStep(Reference("class", f"{name} (class)"), min(1, len(nodes) - 1))
    key = inspection.key_of(nodes[0], nodes[1])
    attribute = key if type(key) is str else "?"
    return PathStep(Reference("class attribute", f"{name}.{attribute} (class attribute)"))
