"""Which variables of a running function it will not look at again."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FrameType

_STORES = ("STORE_", "DELETE_")


def unused(frame: FrameType) -> tuple[str, ...]:
    """Return the variables that the function stores again, or never reads, from here on.

    A loop that it is in is taken to go round once more. Variables that inner functions see are
    left out, and so are globals, which anyone may read.
    """
    code = frame.f_code
    shared = {*code.co_cellvars, *code.co_freevars}
    first: dict[str, bool] = {}
    for instruction in _following(code, frame.f_lasti):
        name = instruction.argval
        for each in name if isinstance(name, tuple) else (name,):
            if isinstance(each, str) and "_FAST" in instruction.opname:
                first.setdefault(each, instruction.opname.startswith(_STORES))
    return tuple(name for name in code.co_varnames if name not in shared and first.get(name, True))


def _following(code: CodeType, last: int) -> Iterator[dis.Instruction]:
    """Give what may run after an instruction: what comes below it, then the loop around it."""
    instructions = [*dis.get_instructions(code)]
    begins = None
    for each in instructions:
        if each.offset <= last:
            continue
        yield each
        if "JUMP" in each.opname and isinstance(each.argval, int) and each.argval <= last:
            begins = each.argval if begins is None else min(begins, each.argval)
    if begins is not None:
        yield from (each for each in instructions if begins <= each.offset <= last)
