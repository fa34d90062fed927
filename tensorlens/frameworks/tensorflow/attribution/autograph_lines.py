"""The lines a person wrote, for lines of the files that autograph makes of them."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from tensorflow.python.autograph.pyct import transpiler

from tensorlens.heap import live_objects, select

_Line = tuple[str, int, str]
"""File name, number, qualified name of the function."""

_maps: dict[str, Mapping[Any, Any]] = {}
"""The map of each generated file that was met."""


def source_line(line: _Line) -> _Line:
    """Return the line that one of autograph's was made from; any other as it is.

    What makes converted functions has the map, and is kept for the next time
    (tensorflow/python/autograph/pyct/transpiler.py, 2.21).
    """
    filename, lineno, _ = line
    if filename not in _maps:
        _maps[filename] = {}
        _read_maps()
    # what stands around a line of the person's has none of its own
    origins = [(each.lineno, origin) for each, origin in _maps[filename].items()]
    before = [each for each in origins if each[0] <= lineno]
    if not before:
        return line
    _, origin = max(before, key=itemgetter(0))
    # a lambda has no name there
    return origin.loc.filename, origin.loc.lineno, origin.function_name or "<lambda>"


def _read_maps() -> None:
    factory = getattr(transpiler, "_PythonFnFactory", None)
    if factory is None:
        return
    (factories, *_) = select(live_objects(), (factory,))
    for each in factories:
        source_map = getattr(each, "source_map", None) or {}
        filename = getattr(next(iter(source_map), None), "filename", None)
        if filename is not None:
            _maps[filename] = source_map
