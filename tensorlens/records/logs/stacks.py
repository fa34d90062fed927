"""Frames, stacks of them as a tree, and the text of their files."""

from __future__ import annotations

import linecache
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tensorlens.records.row_sequence import InternTable
from tensorlens.records.tensors import SourceLine

LAYERS = ("forward", "call")
"""Names of the functions that compute a layer of torch and of Keras."""
NO_MODELS = ("torch", "functorch", "keras", "tf_keras", "tensorflow", "tensorlens")
"""Packages whose layers are not code of a model."""
_INSTALLED = "/site-packages/"
_MAX_CHARACTERS = 2_000_000
"""Size in characters of the largest source file that is kept."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One line on a stack: of Python, or in files of torch also of C++."""

    filename: str
    lineno: int
    function: str
    user: bool = True
    """Whether it is the user's code, not that of torch, an installed package or Python."""

    @property
    def model(self) -> bool:
        """Whether it computes a layer of an installed package's model."""
        around, _, name = self.function.rpartition(".")
        # a wrapper around a model's forward is no code of the model
        if self.user or name not in LAYERS or around.endswith("<locals>"):
            return False
        path = self.filename.replace("\\", "/")
        *_, inside = path.replace("/dist-packages/", _INSTALLED).rpartition(_INSTALLED)
        return inside != path and inside.partition("/")[0] not in NO_MODELS

    @property
    def is_python(self) -> bool:
        """Whether it is a line of Python, or of code compiled from it, not of C++."""
        return self.filename.endswith((".py", ".pyx", ".ipynb")) or self.filename.startswith("<")

    @property
    def line(self) -> SourceLine:
        """The frame as a source line."""
        return SourceLine(self.filename, self.lineno, self.function)


@dataclass(slots=True)
class Stacks:
    """Python stacks as a tree: a node is its innermost frame and the node of the frames outside.

    Stacks that begin alike share their outer nodes. A stack is known by its innermost node, whose
    number is higher than those of the frames outside.
    """

    frames: InternTable[Frame] = field(default_factory=InternTable)
    modules: InternTable[str] = field(default_factory=InternTable)
    """Paths of modules: ``layers.0.mlp``."""
    parent: array[int] = field(default_factory=lambda: array("i"))
    """Node of the frames outside; -1 for the outermost frame."""
    frame: array[int] = field(default_factory=lambda: array("i"))
    module: array[int] = field(default_factory=lambda: array("i"))
    """Module whose ``__call__`` this frame is; -1 for other frames."""
    _nodes: dict[tuple[int, int, int], int] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.parent)

    def push(self, parent: int, frame: Frame, module: str | None = None) -> int:
        """Return the node of ``frame`` inside ``parent`` (-1: outermost)."""
        number = self.frames.number(frame)
        path = -1 if module is None else self.modules.number(module)
        key = parent, number, path
        node = self._nodes.setdefault(key, len(self.parent))
        if node == len(self.parent):
            self.parent.append(parent)
            self.frame.append(number)
            self.module.append(path)
        return node

    def add(self, frames: Sequence[Frame]) -> int:
        """Return the node of a whole stack, innermost frame first; -1 for an empty one."""
        node = -1
        for frame in reversed(frames):
            node = self.push(node, frame)
        return node

    def adopted(self, other: Stacks) -> Sequence[int]:
        """Add other stacks and return the new number of each of their nodes."""
        if other is self:
            return range(len(self))
        nodes: list[int] = []
        for parent, frame, module in zip(other.parent, other.frame, other.module, strict=True):
            path = None if module < 0 else other.modules[module]
            outer = -1 if parent < 0 else nodes[parent]
            nodes.append(self.push(outer, other.frames[frame], path))
        return nodes

    def nodes(self, stack: int) -> Iterator[int]:
        """Yield the nodes of a stack, innermost first."""
        while stack >= 0:
            yield stack
            stack = self.parent[stack]

    def of(self, stack: int) -> tuple[Frame, ...]:
        """Return a stack's frames, innermost first."""
        return tuple(self.frames[self.frame[node]] for node in self.nodes(stack))


def source_lines(stacks: Stacks) -> dict[str, list[str]]:
    """Return the lines of the user's files that have frames.

    In files of libraries' models, lines without frames are blank.
    """
    files = dict.fromkeys(frame.filename for frame in stacks.frames if frame.user)
    text = _model_lines(stacks)
    for file in files:
        if file.startswith("<") and not file.startswith("<ipython"):
            continue
        lines = linecache.getlines(file)
        if lines and sum(map(len, lines)) < _MAX_CHARACTERS:
            text[file] = lines
    return text


def _model_lines(stacks: Stacks) -> dict[str, list[str]]:
    numbers: dict[str, set[int]] = {}
    for frame in stacks.frames:
        if frame.model:
            numbers.setdefault(frame.filename, set()).add(frame.lineno)
    text = {}
    for file, wanted in numbers.items():
        lines = linecache.getlines(file)
        last = min(max(wanted), len(lines))
        text[file] = [lines[each - 1] if each in wanted else "" for each in range(1, last + 1)]
    return text
