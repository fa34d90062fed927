"""The origin of a graph's node: its line, its layer and its phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorlens.records.events import Phase
from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign

Frames = tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class NodeOrigin:
    """Where a node of a graph comes from."""

    stack: Frames = ()
    """The lines of the user's code that made the node, innermost first; if there are none, the
    innermost line of all."""
    line: SourceLine | None = None
    """The innermost of these lines; None where it is not known, or nodes of this name differ."""
    layer: str | None = None
    """The path of the Keras layer, or the name scope of the ``tf.Module``, that the node is in."""
    op: str = ""
    """The type of the operation; empty where nodes of this name differ."""
    forward: NodeOrigin | None = None
    """Of a node that computes gradients: the forward operation that it belongs to."""
    phase: Phase = "forward"
    """``other`` is what a step has besides: input pipelines, metrics, initial values."""
    ambiguous: bool = False
    """Whether nodes of different lines have this name and it is not known which of them runs."""
    frames: Frames = field(default=(), compare=False, repr=False)
    """All lines that made the node, innermost first, those of libraries included."""


def made_at(frames: Frames) -> tuple[Frames, SourceLine | None]:
    """Return the stack and the line of a node by the frames that made it, innermost first."""
    users = tuple(frame for frame in frames if not is_foreign(frame.filename))
    stack = users or frames[:1]
    return stack, stack[0] if stack else None


def common_origin(origins: Sequence[NodeOrigin]) -> NodeOrigin | None:
    """Return what several origins have in common; None if there are none."""
    different = list(dict.fromkeys(origins))
    if len(different) < 2:
        return different[0] if different else None
    first = different[0]
    lines = {each.line for each in different}
    phases = {each.phase for each in different}
    forward = [each.forward for each in different if each.forward is not None]
    ambiguous = len(lines) > 1 or any(each.ambiguous for each in different)
    line = None if ambiguous else first.line
    return NodeOrigin(
        _common([each.stack for each in different], line),
        line,
        layer=first.layer if len({each.layer for each in different}) == 1 else None,
        op=first.op if len({each.op for each in different}) == 1 else "",
        forward=common_origin(forward) if len(forward) == len(different) else None,
        phase=first.phase if len(phases) == 1 else "other",
        ambiguous=ambiguous,
        frames=_common([each.frames for each in different], None),
    )


def _common(stacks: list[Frames], line: SourceLine | None) -> Frames:
    """Return the outer frames that all stacks have, and below them the line they have in common."""
    found: list[SourceLine] = []
    for frames in zip(*(reversed(stack) for stack in stacks), strict=False):
        if len(set(frames)) > 1:
            break
        found.append(frames[0])
    if line is not None and (not found or found[-1] != line):
        found.append(line)
    return tuple(reversed(found))
