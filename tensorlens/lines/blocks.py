"""``with profile:``: the lines of the block itself, in a function that is running already.

And the top-level lines of a program that is running already.
"""

from __future__ import annotations

import ast
import linecache
from pathlib import Path
from types import FrameType

from tensorlens.lines.accounting import Account, Activation, Switch
from tensorlens.lines.engine import Engine
from tensorlens.lines.functions import ProfiledFunction
from tensorlens.lines.tracer import original


class Block:
    """One ``with`` block that is being profiled, or ``whole``: all of a module's own lines."""

    def __init__(self, engine: Engine, frame: FrameType, *, whole: bool = False) -> None:
        code = original(frame.f_code)
        lines = linecache.getlines(code.co_filename)
        first, last = (1, len(lines)) if whole else _extent(code.co_filename, frame.f_lineno)
        lines = lines[first - 1 : last]
        where = "module" if code.co_name == "<module>" else f"{code.co_qualname}()"
        name = f"top level of {Path(code.co_filename).name}" if whole else f"with block in {where}"
        self.function = ProfiledFunction(
            account=Account(code, Switch()),
            name=name,
            qualname=name,
            module=str(frame.f_globals.get("__name__", "")),
            filename=code.co_filename,
            first_line=first,
            source=tuple(line.rstrip("\r\n") for line in lines),
            source_note=None if lines else f"the source is not available ({code.co_filename})",
        )
        self.frame = id(frame)
        self._engine = engine
        self._activation: Activation = engine.adopt(self.function.account, frame)
        self.function.account.calls = 1

    def close(self, frame: FrameType, error: BaseException | None) -> None:
        """End the block; its last line ends here."""
        self._engine.release(self._activation, self.function.account, frame, error)


def _extent(filename: str, lineno: int) -> tuple[int, int]:
    """Return the first and last line of the ``with`` statement around ``lineno``."""
    source = "".join(linecache.getlines(filename))
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # notebook magics, or no source at all
        return lineno, lineno
    extents = [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.With, ast.AsyncWith))
        and node.lineno <= lineno <= node.body[0].lineno
    ]
    return max(extents, default=(lineno, lineno))
