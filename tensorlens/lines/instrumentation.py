"""Line events of a decorated function without a trace function: its twin calls us at each line.

Before Python 3.12 a trace function slows every Python function that the profiled one calls: on
a training step of 2 ms that alone is about 3 % (and a pure Python loop runs several times
slower). A decorated plain function has no need of it: its wrapper runs a twin, a copy of the
function whose bytecode calls a hook where ``sys.settrace`` would report a line. Nothing else in
the program notices. Whatever has no wrapper, or more than one observer, is traced by
:mod:`~tensorlens.lines.settrace`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR, CO_OPTIMIZED
from types import CodeType, FunctionType
from typing import Any, Protocol

from bytecode import Bytecode, Instr, Label
from bytecode.instr import TryBegin

from tensorlens.lines.threads import Threads
from tensorlens.signals import is_from_a_handler

Hook = Callable[[], None]


class HookFor(Protocol):
    """Makes the hook of a line; ``moved``: it counts only when another line ran before."""

    def __call__(self, lineno: int, *, moved: bool) -> Hook:
        """Return the hook."""
        ...


_SUSPENDS = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR
_NEVER_FALLS = frozenset(
    {"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}
)


def make_twin(function: FunctionType, threads: Threads) -> FunctionType | None:
    """Return a copy of ``function`` that reports its lines, or None if that cannot be.

    The copy shares globals, closure and defaults with the original, which is left as it is.
    """
    code = function.__code__
    if code.co_flags & _SUSPENDS or not code.co_flags & CO_OPTIMIZED:
        return None
    try:
        hook_for = functools.partial(_line_hook, threads, code)
        hooked = hooked_code(code, hook_for, _return_hook(threads, code))
    except Exception as failure:  # bytecode that the assembler does not take: settrace does
        if is_from_a_handler(failure):
            raise
        return None
    if hooked.co_varnames != code.co_varnames:  # locals() would come in another order
        return None
    twin = FunctionType(
        hooked, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    twin.__kwdefaults__ = function.__kwdefaults__
    twin.__qualname__ = function.__qualname__
    twin.__module__ = function.__module__
    return twin


def _line_hook(threads: Threads, code: CodeType, lineno: int, *, moved: bool) -> Hook:
    local = threads.local

    def hook() -> None:
        stack = local.state.stack
        if stack and stack[-1].code is code:
            try:
                if not moved or stack[-1].lineno != lineno:
                    stack[-1].line(lineno)
            except Exception as failure:
                stack[-1].fail(failure)

    return hook


def _return_hook(threads: Threads, code: CodeType) -> Hook:
    """Return what ends the last line while the frame still holds its locals.

    So do trace functions and sys.monitoring: what the locals held is given back to the caller.
    """
    local = threads.local

    def hook() -> None:
        stack = local.state.stack
        if stack and stack[-1].code is code:
            activation = stack[-1]
            try:
                activation.finish()
            except Exception as failure:
                activation.fail(failure)

    return hook


def hooked_code(code: CodeType, hook_for: HookFor, at_return: Hook | None = None) -> CodeType:
    """Return ``code`` with a call of a hook wherever a line starts to execute, and at its return.

    That is where the trace function of CPython 3.11 is called (Python/ceval.c,
    maybe_call_line_trace): wherever the line differs from that of the instruction executed
    before, and at jumps backwards.
    """
    source = Bytecode.from_code(code)
    arrivals = _arrivals(source)
    target = Bytecode()
    target._copy_attr_from(source)
    before: Instr | None = None
    started = False
    waiting: list[Any] = []  # what stands between two instructions: labels and try borders
    for item in source:
        if not isinstance(item, Instr):
            waiting.append(item)
            continue
        if started and _can_hook(before, item):
            target.extend(_entrance(before, waiting, item, arrivals, hook_for))
        else:
            target.extend(waiting)
        if at_return is not None and item.name == "RETURN_VALUE":
            target.extend(_call(at_return, item))
        target.append(item)
        started = started or item.name == "RESUME"
        before, waiting = item, []
    target.extend(waiting)
    return target.to_code()


def _can_hook(before: Instr | None, item: Instr) -> bool:
    # a call is one piece from the names of its arguments on
    joined = before is not None and before.name in ("KW_NAMES", "PRECALL")
    return _line_of(item) is not None and not joined


_Arrivals = dict[Label, list[bool | None]]
"""For each label, whether each jump to it starts a line; None where only the run can tell."""


def _arrivals(source: Bytecode) -> _Arrivals:
    lines = _lines_at(source)
    found: _Arrivals = {}
    passed: set[Label] = set()
    for item in source:
        if isinstance(item, Label):
            passed.add(item)
        elif isinstance(item, Instr) and isinstance(item.arg, Label):
            starts = _line_of(item) != lines.get(item.arg) or item.arg in passed
            found.setdefault(item.arg, []).append(starts)
        elif isinstance(item, TryBegin):
            found.setdefault(item.target, []).append(None)
    return found


def _lines_at(source: Bytecode) -> dict[Label, int | None]:
    lines: dict[Label, int | None] = {}
    open_labels: list[Label] = []
    for item in source:
        if isinstance(item, Label):
            open_labels.append(item)
        elif isinstance(item, Instr):
            lines.update(dict.fromkeys(open_labels, _line_of(item)))
            open_labels = []
    return lines


def _entrance(
    before: Instr | None, waiting: list[Any], item: Instr, arrivals: _Arrivals, hook_for: HookFor
) -> list[Any]:
    """Return what precedes ``item``: ``waiting``, and a hook for the ways in that start a line."""
    line = _line_of(item)
    assert before is not None and line is not None
    falls = before.name not in _NEVER_FALLS
    fall_starts = falls and (before.name == "RESUME" or _line_of(before) != line)
    ways = [way for label in waiting if isinstance(label, Label) for way in arrivals.get(label, ())]
    if not any(way is not False for way in ways):
        call = _call(hook_for(line, moved=False), item) if fall_starts else []
        # jumps that stay on the line come in after the hook
        return [*call, *waiting] if ways else [*waiting, *call]
    if not all(ways):
        return [*waiting, *_call(hook_for(line, moved=True), item)]
    call = _call(hook_for(line, moved=False), item)
    if falls and not fall_starts:
        over = Label()
        return [Instr("JUMP_FORWARD", over, location=item.location), *waiting, *call, over]
    return [*waiting, *call]


def _call(hook: Hook, item: Instr) -> list[Instr]:
    where = item.location
    return [
        Instr("PUSH_NULL", location=where),
        Instr("LOAD_CONST", hook, location=where),
        Instr("PRECALL", 0, location=where),
        Instr("CALL", 0, location=where),
        Instr("POP_TOP", location=where),
    ]


def _line_of(item: Instr) -> int | None:
    return item.lineno if isinstance(item.lineno, int) else None
