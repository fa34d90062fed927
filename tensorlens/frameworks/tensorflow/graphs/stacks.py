"""Stack traces of graph nodes, and facts about the nodes that follow from the files."""

from __future__ import annotations

from functools import cached_property

from tensorlens.records.tensors import SourceLine
from tensorlens.user_code import is_foreign

Frames = tuple[SourceLine, ...]

_OPTIMIZERS = ("keras/src/optimizers/", "keras/src/backend/tensorflow/optimizer")
_METRICS = ("keras/src/metrics/",)
_LAYER = "keras/src/layers/layer.py"
_BUILD = "build_wrapper"


class Stack:
    """The lines that made a node; many nodes share one stack."""

    def __init__(self, frames: Frames = ()) -> None:
        self.frames = frames
        """All lines but TensorFlow's own, innermost first."""

    @cached_property
    def outermost_first(self) -> Frames:
        """The same lines in reverse order."""
        return self.frames[::-1]

    @cached_property
    def users(self) -> Frames:
        """The lines of the user's code, innermost first; the innermost line if there are none."""
        return (
            tuple(frame for frame in self.frames if not is_foreign(frame.filename))
            or self.frames[:1]
        )

    @cached_property
    def is_optimizer(self) -> bool:
        """Whether an optimizer of Keras made the node."""
        return self._has_file_in(_OPTIMIZERS)

    @cached_property
    def is_metric_or_build(self) -> bool:
        """Whether a metric made the node, or the building of a layer."""
        builds = any(frame.function == _BUILD for frame in self.frames)
        return builds or self._has_file_in(_METRICS)

    @cached_property
    def open_layers(self) -> tuple[int, bool]:
        """Number of layers whose name scopes were open, and whether the innermost was built."""
        depth, is_building, has_scope = 0, False, False
        for frame in self.outermost_first:
            if not frame.filename.replace("\\", "/").endswith(_LAYER):
                continue
            if frame.function == "__call__":
                depth, is_building, has_scope = depth + 1, False, False
            elif frame.function == "_maybe_build":
                has_scope = True  # build() opens the scope that is open already
            elif frame.function == _BUILD:
                depth, is_building, has_scope = depth + (not has_scope), True, False
        return depth, is_building

    def _has_file_in(self, folders: tuple[str, ...]) -> bool:
        files = {frame.filename.replace("\\", "/") for frame in self.frames}
        return any(folder in file for file in files for folder in folders)
