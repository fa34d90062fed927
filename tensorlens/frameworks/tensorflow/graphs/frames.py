"""The frames that made each node, out of TensorFlow's ``GraphDebugInfo``.

It keeps each frame and each stack once, which makes it far faster to read than the stack traces
that TensorFlow makes of it. Frames of TensorFlow's own Python code are left out: the runtime does
not keep them for its functions either.
(tensorflow/core/framework/graph_debug_info.proto)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tensorflow.python.util import tf_stack

from tensorlens.frameworks.tensorflow.graphs.origins import Frames
from tensorlens.records.tensors import SourceLine

_OWN_CODE = str(Path(tf_stack.__file__).parents[1])


class LazyFrames:
    """Frames by the node's name; they are read when the first node is asked for."""

    def __init__(self, read: Callable[[], Mapping[str, Frames]]) -> None:
        self._read = read
        self._frames: Mapping[str, Frames] | None = None

    def __call__(self, node: str) -> Frames:
        """Return the frames that made a node, innermost first; none if they were not kept."""
        return self.load().get(node, ())

    def load(self) -> Mapping[str, Frames]:
        """Read them now."""
        if self._frames is None:
            try:
                self._frames = self._read()
            except Exception:  # the function died, or this TensorFlow keeps its traces otherwise
                self._frames = {}
        return self._frames


def from_debug_info(info: Any) -> dict[str, Frames]:
    """Return the frames of each node of a ``GraphDebugInfo``, innermost first."""
    files = list(info.files)

    def line(frame: Any) -> SourceLine:
        return SourceLine(files[frame.file_index], frame.line, frame.func)

    frames = {key: line(frame) for key, frame in info.frames_by_id.items()}
    stacks = {
        key: _outside(frames[each] for each in reversed(stack.frame_id))
        for key, stack in info.traces_by_id.items()
    }
    found = {_node(name): stacks.get(key, ()) for name, key in info.name_to_trace_id.items()}
    for name, stack in info.traces.items():  # as older ones have it
        found.setdefault(_node(name), _outside(map(line, reversed(stack.file_line_cols))))
    return found


def of_operations(traces: Mapping[str, Any]) -> dict[str, Frames]:
    """Return the frames of operations of a live graph.

    Args:
        traces: each operation's ``traceback`` by its name.
    """
    try:
        builder = tf_stack.GraphDebugInfoBuilder()
        different = {id(trace): trace for trace in traces.values() if trace is not None}
        for key, trace in different.items():
            builder.AccumulateStackTrace("", str(key), trace)
        found = from_debug_info(builder.Build())
        return {name: found.get(str(id(trace)), ()) for name, trace in traces.items()}
    except Exception:  # another TensorFlow: slower, and always there
        return {name: _listed(trace) for name, trace in traces.items() if trace is not None}


def _listed(trace: Any) -> Frames:
    lines = [SourceLine(frame.filename, frame.lineno, frame.name) for frame in trace]
    return _outside(reversed(lines))


def _outside(frames: Iterable[SourceLine]) -> Frames:
    return tuple(frame for frame in frames if not frame.filename.startswith(_OWN_CODE))


def _node(name: str) -> str:
    """Return a node's name without that of its function, which may be behind it."""
    return name.partition("@")[0]
