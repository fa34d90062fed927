"""What the program wrote for the tensors that it brings: the names of its inputs."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

import torch

from tensorlens.frameworks.code import is_foreign

_LONGEST = 60
_NO_DATA = tuple(str(Path(torch.__file__).parent / name) for name in ("nn", "optim"))
_MOVES = ("to", "cuda", "cpu", "pin_memory", "clone", "contiguous", "float", "half", "long")

BRINGING = frozenset(
    f"aten::{name}"
    for name in (
        *("_to_copy", "clone", "copy_", "lift_fresh", "empty", "empty_strided", "_pin_memory"),
        *("randn", "rand", "randint", "randperm", "zeros", "ones", "full", "arange", "normal_"),
        *("stack", "cat", "new_zeros", "new_ones", "new_full", "zeros_like", "ones_like"),
        *("randn_like", "rand_like", "randint_like", "full_like", "eye", "linspace"),
    )
)
"""Operators that bring data: they copy, collate or make it."""


class Expressions:
    """What the user's program wrote for what runs now."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], str | None] = {}
        self._code: list[CodeType] = []
        """Kept so that no other takes its address."""

    def of(self, frame: FrameType | None) -> str | None:
        """Return ``images`` for ``images.cuda()``, or what is assigned to, else the expression.

        None for what an object being made takes for itself, the weights of a layer, and for what
        torch's layers and optimizers do.
        """
        while frame is not None and is_foreign(frame.f_code.co_filename):
            if frame.f_code.co_name == "__init__" or frame.f_code.co_filename.startswith(_NO_DATA):
                return None
            frame = frame.f_back
        if frame is None or frame.f_code.co_name == "__init__":
            return None
        key = id(frame.f_code), frame.f_lasti
        if key not in self._known:
            self._code.append(frame.f_code)
            self._known[key] = _written(frame)
        return self._known[key]


def _written(frame: FrameType) -> str | None:
    position = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    if position is None or None in position:
        return None
    first, last, begin, end = position
    assert first and last and begin is not None and end is not None
    lines = linecache.getlines(frame.f_code.co_filename)[first - 1 : last]
    if not lines:
        return None
    # columns count bytes of UTF-8; the last line is cut first, as it may be the only one
    cut = [line.encode() for line in lines]
    cut[-1] = cut[-1][:end]
    cut[0] = cut[0][begin:]
    text = b"".join(cut).decode("utf-8", "replace")
    return _assigned(lines, text) or _moved(text) or " ".join(text.split())[:_LONGEST]


def _moved(text: str) -> str | None:
    """Return what is moved by ``.to()`` or its like."""
    try:
        expression = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(expression, ast.Call) or not isinstance(expression.func, ast.Attribute):
        return None
    return ast.unparse(expression.func.value) if expression.func.attr in _MOVES else None


def _assigned(lines: Sequence[str], text: str) -> str | None:
    """Return the one variable that all of an expression's value is assigned to."""
    try:
        (statement,) = ast.parse("".join(lines).strip()).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    if ast.get_source_segment("".join(lines).strip(), statement.value) != text:
        return None
    return ast.unparse(statement.targets[0])
