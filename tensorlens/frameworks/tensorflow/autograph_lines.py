"""The lines a person wrote, for lines of the files that autograph makes of them."""

from __future__ import annotations

from typing import Any

from tensorflow.python.autograph.pyct import origin_info, transpiler

from tensorlens.frameworks.heap import living, select
from tensorlens.records.tensors import SourceLine

_GENERATED = "__autograph_generated_file"


def written(line: SourceLine) -> SourceLine:
    """Return the line that one of autograph's was made from; any other as it is.

    What makes converted functions has the map, and is kept for the next time
    (tensorflow/python/autograph/pyct/transpiler.py, 2.21).
    """
    factory = getattr(transpiler, "_PythonFnFactory", None)
    if _GENERATED not in line.filename or factory is None:
        return line
    (factories, *_) = select(living(), (factory,))
    found = (_origin(getattr(each, "source_map", None), line) for each in factories)
    return next(filter(None, found), line)


def _origin(source_map: Any, line: SourceLine) -> SourceLine | None:
    try:
        origin = source_map.get(origin_info.LineLocation(line.filename, line.lineno))
        if origin is None:
            return None
        return SourceLine(origin.loc.filename, origin.loc.lineno, origin.function_name)
    except AttributeError:
        # another TensorFlow's map
        return None
