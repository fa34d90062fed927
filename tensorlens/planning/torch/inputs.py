"""Inputs of a program: the operators that make them, and the expressions that name them."""

from __future__ import annotations

import inspect
import linecache
import re
from pathlib import Path
from types import CodeType, FrameType

import torch

from tensorlens.user_code import is_foreign

_MAX_LENGTH = 60
"""Characters of an expression that is a name."""
_FOLDERS_OF_STATE = tuple(str(Path(torch.__file__).parent / name) for name in ("nn", "optim"))
"""Folders of torch whose tensors are weights and states."""
_MOVES = "to|cuda|cpu|pin_memory|clone|contiguous|float|half|long"

INPUT_OPERATORS = frozenset(
    f"aten::{name}"
    for name in (
        *("_to_copy", "clone", "copy_", "lift_fresh", "empty", "empty_strided", "_pin_memory"),
        *("randn", "rand", "randint", "randperm", "zeros", "ones", "full", "arange", "normal_"),
        *("stack", "cat", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like"),
        *("randn_like", "rand_like", "randint_like", "full_like", "eye", "linspace"),
    )
)
"""Operators whose results may be inputs: they copy, collate or make data."""


class Expressions:
    """Names of inputs: expressions of the user's program."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str | None] = {}
        self._code: list[CodeType] = []
        """Code objects, kept alive so that addresses stay unique."""

    def expression(self, frame: FrameType | None) -> str | None:
        """Return ``images`` for ``images.cuda()``, or the assigned variable, else the expression.

        None in an ``__init__``, which makes weights, and in torch's layers and optimizers.
        """
        while frame is not None and is_foreign(frame.f_code.co_filename):
            code = frame.f_code
            if code.co_name == "__init__" or code.co_filename.startswith(_FOLDERS_OF_STATE):
                return None
            frame = frame.f_back
        if frame is None or frame.f_code.co_name == "__init__":
            return None
        key = id(frame.f_code), frame.f_lasti
        if key not in self._known:
            self._code.append(frame.f_code)
            self._known[key] = _source_text(frame)
        return self._known[key]


def _source_text(frame: FrameType) -> str | None:
    position = inspect.getframeinfo(frame, context=0).positions
    if position is None or None in position:
        return None
    first, last, begin, end = position
    assert first and last and begin is not None and end is not None
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    if not lines:
        return None
    # columns are bytes of UTF-8; the last line is cut first, as it may be the only one
    cut = [line.encode() for line in lines]
    cut[-1] = cut[-1][:end]
    cut[0] = cut[0][begin:]
    text = b"".join(cut).decode("utf-8", "replace")
    statement = "".join(lines).strip()
    assigned = re.fullmatch(rf"([\w.]+)\s*=\s*{re.escape(text)}(\s*#.*)?", statement)
    moved = re.fullmatch(rf"([\w.]+(\[[^\]]*\]|\([^()]*\))*)\.({_MOVES})\(.*\)", text, re.DOTALL)
    for found in (assigned, moved):
        if found is not None:
            return found[1]
    return " ".join(text.split())[:_MAX_LENGTH]
