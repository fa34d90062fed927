"""Which blocks are a program's inputs, and what they are called."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping

from tensorlens.recording.study import Study
from tensorlens.records.events import EventLog, Label
from tensorlens.records.tensors import SourceLine

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

Brought = tuple[str, tuple[int, ...]]
"""Type and shape of a tensor."""


def name_inputs(log: EventLog, brought: Mapping[int, Brought]) -> None:
    """Label blocks that no model or optimizer holds, brought outside of both.

    Args:
        log: whose blocks.
        brought: row of each block that one of :data:`BRINGING` made, outside of backward and for
            no node of autograd's.
    """
    study = Study(log)
    for row, (dtype, shape) in brought.items():
        place = study.place(row)
        if log.label[row] < 0 and study.phase[place] == "other" and study.module[place] is None:
            line = study.charged[place]
            name = _variable(line) or f"{study.context(place).op} at {line}"
            log.name(row, Label(name, "input", dtype, shape))


def _variable(line: SourceLine | None) -> str | None:
    """Return what a line assigns to, as it is written there."""
    if line is None:
        return None
    text = linecache.getline(line.filename, line.lineno).strip()
    try:
        (statement,) = ast.parse(text).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(statement, ast.Assign):
        return None
    return ", ".join(ast.unparse(target) for target in statement.targets).strip("()")
