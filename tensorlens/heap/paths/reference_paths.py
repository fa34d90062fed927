"""Choose among the paths from roots to an object, and write them as text."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tensorlens.heap import reference_names
from tensorlens.heap.native import NativeHeap, native
from tensorlens.heap.paths import inspection
from tensorlens.heap.paths.inspection import PathStep
from tensorlens.heap.paths.nodes import NAMESPACES, NodePath, PathNode, PathRoot, RootKind
from tensorlens.heap.paths.reference_text import next_step
from tensorlens.heap.paths.search import Search, ancestors
from tensorlens.interpreter import paused_collector
from tensorlens.records.references import Reference, ReferencePath

_MAX_PATHS = 5
"""Paths to one object, at most."""
_NOT_READ = ReferencePath(
    (Reference("n/a", "n/a: the native reader of the heap is missing"),), is_cut=True
)


def reference_paths(
    targets: Sequence[object | None], *, skip: Collection[int] = ()
) -> list[list[ReferencePath]]:
    """Return up to five different paths that keep each target alive, the shortest first.

    Args:
        targets: some objects that the collector tracks, at most a few dozen. None has no paths.
        skip: addresses of objects that do not count as holders: the caller's own containers.
            Instances of the profiler's classes and objects of its code never count.

    Two paths are different if they have another root or another direct holder of the target. The
    last reference is the one to the target and says nothing of the target itself. A path that
    could not be followed to its root ``is_cut``. An object without any path is garbage that waits
    for the collector, see :func:`cycle`, or is held by the profiler alone.

    A call takes some hundred milliseconds for a million objects. Nothing is kept or changed, and
    the collector is paused meanwhile. Without the native reader each path is one that ``is_cut``
    and says so.
    """
    reader = native()
    if reader is None:
        return [[] if each is None else [_NOT_READ] for each in targets]
    known = [each for each in targets if each is not None]
    with _run_search(reader, known, (*skip, id(targets))) as search:
        found = iter([_choose(target) for target in search.targets])
    return [[] if each is None else next(found) for each in targets]


def cycle(target: object) -> ReferencePath | None:
    """Return the cycle that keeps unreachable garbage: ``Node.parent -> dict['kids'] -> Node``.

    It begins and ends with the same object, whose type is the last reference. The target is in the
    cycle or held by it. None if a root leads to the target, if there is no cycle, or without the
    native reader.
    """
    reader = native()
    if reader is None:
        return None
    with _run_search(reader, [target], ()) as search:
        node = search.targets[0]
        if any(several for several in paths(node)):
            return None
        for origin in ancestors(node):
            circle = shortest_cycle(origin)
            if circle is not None:
                return write_cycle(circle)
    return None


@contextlib.contextmanager
def _run_search(
    reader: NativeHeap, targets: Sequence[object], skip: Collection[int]
) -> Iterator[Search]:
    with paused_collector():
        search = Search(targets, skip)
        try:
            search.run(reader)
            yield search
        finally:
            search.clear()


def _choose(target: PathNode) -> list[ReferencePath]:
    ranked = [
        (place, path.rank, path) for several in paths(target) for place, path in enumerate(several)
    ]
    # the shortest path of each holder comes before the second of any
    ranked.sort(key=lambda each: (each[1][0], each[0], each[1]))
    chosen: list[ReferencePath] = []
    met: set[tuple[str | int, int] | str] = set()
    for _, (root_order, _), path in ranked:
        if root_order > 1 and chosen:
            break
        text, beginning = write(path)
        keys: set[tuple[str | int, int] | str] = {(beginning, path.holder_address), str(text)}
        if met.isdisjoint(keys):
            chosen.append(text)
        met |= keys
        if len(chosen) == _MAX_PATHS:
            break
    return sorted(chosen, key=lambda each: (each.is_cut, len(each.references)))


def paths(target: PathNode) -> Iterator[list[NodePath]]:
    """Yield the target's own roots as paths, then each direct holder's paths, the best first."""
    yield [NodePath(root, (target,)) for root in target.roots]
    for holder in target.holders:
        if holder is not target:
            yield sorted(_paths_through(holder, target), key=lambda path: path.rank)


def _paths_through(holder: PathNode, target: PathNode) -> Iterator[NodePath]:
    paths_down: dict[int, tuple[PathNode, ...]] = {holder.address: (holder, target)}
    level = [holder]
    while level:
        above = []
        for node in level:
            path = paths_down[node.address]
            for root in node.roots:
                yield NodePath(root, path)
            for further in node.holders:
                if any(root.kind in NAMESPACES for root in further.roots):
                    # two variables of one module are two paths
                    yield from (NodePath(root, (further, *path)) for root in further.roots)
                elif further is not target and further.address not in paths_down:
                    paths_down[further.address] = (further, *path)
                    above.append(further)
        level = above


def shortest_cycle(node: PathNode) -> tuple[PathNode, ...] | None:
    """Return the nodes from an object back to itself, holders first."""
    if any(holder is node for holder in node.holders):
        return node, node
    level: list[tuple[PathNode, ...]] = [(node,)]
    met: set[int] = set()
    while level:
        above = []
        for path in level:
            for holder in path[0].holders:
                if holder is node:
                    return (node, *path)
                if holder.address not in met:
                    met.add(holder.address)
                    above.append((holder, *path))
        level = above
    return None


def write(path: NodePath) -> tuple[ReferencePath, str | int]:
    """Return a path as text, and a key of its beginning: a name or an address."""
    writer = _Writer(path.nodes)
    writer.write_root(path.root)
    writer.write_rest()
    is_cut = path.root.kind in (RootKind.UNSEEN, RootKind.CUT)
    return ReferencePath(tuple(writer.references), is_cut), writer.beginning


def write_cycle(circle: tuple[PathNode, ...]) -> ReferencePath:
    """Return the text of a cycle."""
    writer = _Writer(circle)
    writer.write_rest()
    name = inspection.kind_name(circle[0])
    references = map(_without_kind, writer.references)
    return ReferencePath((*references, Reference("cycle", name, name)))


@dataclass(slots=True)
class _Writer:
    nodes: tuple[PathNode, ...]
    references: list[Reference] = field(default_factory=list)
    beginning: str | int = 0
    place: int = 0
    is_bare: bool = True
    """Whether all references so far may be dropped for one that names its own place."""

    def write_root(self, root: PathRoot) -> None:
        """Write the root."""
        first = self.nodes[0]
        if root.kind == RootKind.GLOBAL:
            self._take(_global_step(root.name, self.nodes))
        elif root.kind == RootKind.CLASS:
            self._take(_class_step(root.name, self.nodes))
        elif root.kind == RootKind.LOCAL:
            self._take(PathStep(Reference("local", f"{root.name} (local)"), int(_is_cell(first))))
        elif root.kind == RootKind.UNSEEN:
            self._take(PathStep(Reference("unknown", root.name), 0))
            self.is_bare = False
        name = self.references[0].text if self.references else ""
        # a closure may refer to the same cell
        is_cell = root.kind == RootKind.LOCAL and _is_cell(first)
        self.beginning = first.address if is_cell else f"{name} {first.address}"

    def write_rest(self) -> None:
        """Write the references after the root."""
        while self.place < len(self.nodes) - 1:
            before = self.references[-1] if self.references else None
            step = next_step(self.nodes[self.place :], before)
            if step.is_root and self.is_bare:
                self.references.clear()
                self.beginning = self.nodes[self.place + step.root_index].address
            elif not step.is_root and step.reference is not None:
                self.is_bare = False
            self._take(step)

    def _take(self, step: PathStep) -> None:
        self.place += step.nodes
        if step.reference is None:
            return
        child = self.nodes[self.place]
        reference = replace(step.reference, type=inspection.kind_name(child))
        if inspection.is_of(child, BaseException):
            kept = _without_kind(reference).text
            text = kept if kept.startswith("__") else f"exception kept in {kept}"
            reference = replace(reference, kind="exception", text=text)
        self.references.append(reference)


def _is_cell(node: PathNode) -> bool:
    return not node.is_tuple and reference_names.type_name(node.object) == "<cell>"


def _without_kind(reference: Reference) -> Reference:
    """Return a reference without its kind in parentheses."""
    return replace(reference, text=reference.text.removesuffix(f" ({reference.kind})"))


def _global_step(module: str, nodes: tuple[PathNode, ...]) -> PathStep:
    if len(nodes) == 1:
        return PathStep(Reference("global", f"{module or '__main__'} (globals)"), 0)
    place = nodes[1].holders[nodes[0]]
    name = place.key or place.text or "?"
    return PathStep(Reference("global", f"{module}.{name} (global)".removeprefix(".")), 1)


def _class_step(name: str, nodes: tuple[PathNode, ...]) -> PathStep:
    if len(nodes) < 2 or not inspection.is_of(nodes[0], dict):
        return PathStep(Reference("class", f"{name} (class)"), min(1, len(nodes) - 1))
    attribute = nodes[1].holders[nodes[0]].key or "?"
    return PathStep(Reference("class attribute", f"{name}.{attribute} (class attribute)"))
