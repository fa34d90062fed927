"""Line events on Python 3.11: hooks in the bytecode of the profiled functions.

A trace function slows every Python function that the profiled one calls: by 3 % and more on a
training step of 2 ms, and several times in a pure Python loop. Here the profiled code calls the
tracer itself where ``sys.settrace`` would report an event. A wrapper calls a twin, a copy of its
function with such code; without a wrapper, the function's ``__code__`` is replaced until the
profiler is switched off.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Container, Iterator
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType, FunctionType
from typing import Any

from bytecode import Bytecode, Instr, Label
from bytecode.instr import InstrLocation, TryBegin, TryEnd

from tensorlens.errors import ProfileError
from tensorlens.frameworks.base import Adapter
from tensorlens.frameworks.compilers import CompilerWatch
from tensorlens.frameworks.registry import adapters
from tensorlens.guards import is_from_a_handler
from tensorlens.lines.tracing.activation import Activation
from tensorlens.lines.tracing.running_frames import RunningFrames
from tensorlens.lines.tracing.tracer import EventSource, Hook, Tracer, original

_NEVER_FALLS_THROUGH = frozenset(
    {"RETURN_VALUE", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}
    | {"JUMP_BACKWARD_NO_INTERRUPT"}
)
_NOWHERE = InstrLocation(None, None, None, None)
_EXTRA_STACK = 8
"""Stack entries for the call of a hook, those of the handler included."""


READ_BY_A_COMPILER = (
    "torch.compile reads it or what is beside it: calls from then on are not in these figures; "
    "a function with @profile is measured beside a compiler too"
)


class Instrumentation(EventSource):
    """Events from hooks in bytecode."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._hooked: dict[int, tuple[CodeType, CodeType]] = {}
        """Identity of a code to that code and the same with hooks."""
        self._installed: dict[int, tuple[FunctionType, int]] = {}
        """Identity to function with hooks, and the number of profilers that installed them."""
        self._compiled: set[int] | None = None
        """Identities of code at which compiled calls begin; None if to be asked for again."""
        self._exchanged: dict[int, tuple[CodeType, CodeType]] = {}
        """Identity of a code replaced before it ran, to that code and the same with hooks."""
        self._watches: dict[Adapter, CompilerWatch | None] = {}
        """Watches for compilers that are about to read functions, while any are installed."""
        self._running = RunningFrames(tracer.thread)

    def unwatch(self, code: CodeType) -> None:
        """Give functions that were made while the exchanged code ran their own code back."""
        _, hooked = self._exchanged.pop(id(code), (None, None))
        if hooked is None or not code.co_flags & CO_OPTIMIZED:
            return
        for each in gc.get_referrers(hooked):
            if isinstance(each, FunctionType) and each.__code__ is hooked:
                each.__code__ = code

    def install(self, function: FunctionType, code: CodeType) -> None:
        """Report the lines of ``function`` wherever it is called."""
        _, count = self._installed.get(id(function), (function, 0))
        if function.__code__ is code:
            hooked = self._hooked_code(code)
            if self._compiled is None or not self._installed:
                self._compiled = {each for one in adapters() for each in one.compiled_codes()}
            if id(code) in self._compiled:
                raise ProfileError(READ_BY_A_COMPILER)
            for adapter in adapters():
                adapter.skip_code(hooked, deep=False)
                if (watch := self._watches.get(adapter)) is not None:
                    watch.renew()
                else:
                    self._watches[adapter] = adapter.watch_compiler(self._step_aside)
            function.__code__ = hooked
        self._installed[id(function)] = function, count + 1

    def uninstall(self, function: FunctionType, code: CodeType) -> None:
        """Undo one :meth:`install`; running frames keep their code to the end."""
        _, count = self._installed.get(id(function), (function, 1))
        if count > 1:
            self._installed[id(function)] = function, count - 1
            return
        self._installed.pop(id(function), None)
        if function.__code__ is self._hooked.get(id(code), (None, None))[1]:
            function.__code__ = code
        if not self._installed:
            for watch in self._watches.values():
                if watch is not None:
                    watch.stop()
            self._watches.clear()

    def twin(self, function: FunctionType, code: CodeType) -> FunctionType:
        """Return a copy of ``function`` that reports its lines.

        It shares globals, closure and defaults with the original, which is not changed.

        Raises:
            ProfileError: its bytecode cannot be changed.
        """
        twin = FunctionType(
            self._hooked_code(code),
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        twin.__kwdefaults__ = function.__kwdefaults__
        twin.__qualname__ = function.__qualname__
        twin.__module__ = function.__module__
        return twin

    def exchange(self, code: CodeType, wanted: Callable[[CodeType], bool]) -> CodeType:
        """Return ``code``, which has not run yet, with hooks in all wanted code inside it."""
        constants = tuple(
            self.exchange(each, wanted) if isinstance(each, CodeType) else each
            for each in code.co_consts
        )
        hooked = code
        if any(one is not other for one, other in zip(constants, code.co_consts, strict=True)):
            hooked = code.replace(co_consts=constants)
        if wanted(code):
            hooked = hooked_code(hooked, self._tracer, code)
            self._exchanged[id(code)] = code, hooked
        return hooked

    def adopt(self, activation: Activation, frame: FrameType) -> str | None:
        """Report the lines of a running frame, by its hooks or by a trace function."""
        is_plain = original(frame.f_code) is frame.f_code
        return self._running.adopt(activation, frame) if is_plain else None

    def release(self, activation: Activation, frame: FrameType) -> str | None:
        """Undo :meth:`adopt`; return what went wrong meanwhile, or None."""
        return self._running.release(activation, frame)

    def _step_aside(self, codes: Container[int] | None) -> None:
        """Restore the code of functions that a compiler will read and that are not running.

        A compiler must not read hooks, and it drops compiled code once the code of a function
        behind it changes: so the hooks go before it reads.

        Args:
            codes: identities of the code that it reads; None if it may read any.
        """
        self._compiled = None
        running: set[int] = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            running.add(id(original(frame.f_code)))
            frame = frame.f_back
        for function, _count in [*self._installed.values()]:
            if codes is not None and id(function.__code__) not in codes:
                continue
            code = original(function.__code__)
            if code is not function.__code__ and id(code) not in running:
                function.__code__ = code
                for account in self._tracer.watched.knows(id(code)) or ():
                    account.failure = READ_BY_A_COMPILER

    def _hooked_code(self, code: CodeType) -> CodeType:
        if id(code) not in self._hooked:
            try:
                hooked = hooked_code(code, self._tracer, code)
            except Exception as failure:  # bytecode that the assembler does not take
                if is_from_a_handler(failure):
                    raise
                hooked = code
            if hooked is code:
                raise ProfileError("its bytecode cannot be made to report its lines")
            self._hooked[id(code)] = code, hooked
        return self._hooked[id(code)][1]


class _HookCalls:
    """Builder of the instructions that call the hooks of one code object."""

    def __init__(self, code: CodeType, tracer: Tracer) -> None:
        self._hooks = {
            event: Hook(getattr(tracer, f"on_{event}"), code)
            for event in ("start", "line", "moved", "return", "yield", "resume", "unwind")
        }

    def line(self, item: Instr, *, moved: bool = False) -> list[Instr]:
        """Return the instructions that report the line of ``item``.

        With ``moved`` they report it only if another line ran before.
        """
        return self.event("moved" if moved else "line", item, item.lineno)

    def event(self, event: str, item: Instr, argument: object = 0) -> list[Instr]:
        """Return the instructions that report an event at the location of ``item``."""
        # the first line event of a trace function comes after the start and has another line
        where = _NOWHERE if event == "start" else item.location
        return [
            Instr("PUSH_NULL", location=where),
            Instr("LOAD_CONST", self._hooks[event], location=where),
            Instr("LOAD_CONST", argument, location=where),
            Instr("PRECALL", 1, location=where),
            Instr("CALL", 1, location=where),
            Instr("POP_TOP", location=where),
        ]

    def handler(self, label: Label) -> list[Any]:
        """Return the handler that reports the exception leaving the frame and raises it unchanged.

        The stack holds the exception, and below it the offset of the instruction that raised it,
        for RERAISE 1; the cleanup is the one that the compiler makes for any handler.
        """
        cleanup = Label()
        guard = TryBegin(cleanup, push_lasti=True, stack_depth=2)
        return [
            label,
            Instr("PUSH_EXC_INFO", lineno=None),
            guard,
            Instr("PUSH_NULL", lineno=None),
            Instr("LOAD_CONST", self._hooks["unwind"], lineno=None),
            Instr("LOAD_CONST", 0, lineno=None),
            Instr("COPY", 4, lineno=None),
            Instr("PRECALL", 2, lineno=None),
            Instr("CALL", 2, lineno=None),
            Instr("POP_TOP", lineno=None),
            TryEnd(guard),
            Instr("SWAP", 2, lineno=None),
            Instr("POP_EXCEPT", lineno=None),
            Instr("RERAISE", 1, lineno=None),
            cleanup,
            Instr("COPY", 3, lineno=None),
            Instr("POP_EXCEPT", lineno=None),
            Instr("RERAISE", 1, lineno=None),
        ]


def hooked_code(code: CodeType, tracer: Tracer, watched: CodeType) -> CodeType:
    """Return ``code`` with calls of the tracer at its events, reported as those of ``watched``.

    A line is reported where CPython 3.11 calls a trace function for one (Python/ceval.c,
    maybe_call_line_trace): where it differs from the line of the instruction executed before,
    and at jumps backwards.
    """
    source = Bytecode.from_code(code, conserve_exception_block_stackdepth=True)
    calls = _HookCalls(watched, tracer)
    handler = Label()
    target = Bytecode()
    target._copy_attr_from(source)
    target.argnames = list(code.co_varnames)  # locals() keeps its order
    target.extend(_guarded(_with_events(source, calls), handler))
    target.extend(calls.handler(handler))
    stack = code.co_stacksize + _EXTRA_STACK
    return target.to_code(stacksize=stack, compute_exception_stack_depths=False)


def _guarded(items: Iterator[Any], handler: Label) -> Iterator[Any]:
    """Guard by ``handler`` all instructions outside the function's own try blocks."""
    guard: TryBegin | None = None
    started = covered = False
    for item in items:
        if isinstance(item, TryBegin):
            if guard is not None:
                yield TryEnd(guard)
            guard, covered = None, True
        elif isinstance(item, TryEnd):
            covered = False
        elif isinstance(item, Instr) and started and not covered and guard is None:
            guard = TryBegin(handler, push_lasti=True, stack_depth=0)
            yield guard
        yield item
        started = started or _is_start(item)
    if guard is not None:
        yield TryEnd(guard)


def _is_start(item: Any) -> bool:
    return isinstance(item, Instr) and item.name == "RESUME" and item.arg == 0


def _with_events(source: Bytecode, calls: _HookCalls) -> Iterator[Any]:
    starts = _line_starts_of_jumps(source)
    before: Instr | None = None
    started = False
    pending: list[Any] = []  # labels and try borders since the last instruction
    for item in source:
        if not isinstance(item, Instr):
            pending.append(item)
            continue
        if started and _can_hook(before, item):
            yield from _with_line_hook(before, pending, item, starts, calls)
        else:
            yield from pending
        if item.name == "RETURN_VALUE":
            yield from calls.event("return", item)
        elif item.name == "YIELD_VALUE":
            yield from calls.event("yield", item)
            if before is not None and before.name == "SEND":
                yield from _decoy(before)
        yield item
        if item.name == "RESUME":
            yield from calls.event("resume" if started else "start", item)
            started = True
        before, pending = item, []
    yield from pending


def _decoy(send: Instr) -> list[Any]:
    """Return a SEND that is jumped over, to stand right before its yield.

    ``throw()`` looks there for the end of the delegation (Objects/genobject.c, _gen_throw).
    """
    over = Label()
    return [Instr("JUMP_FORWARD", over, location=send.location), send.copy(), over]


def _can_hook(before: Instr | None, item: Instr) -> bool:
    # a hook cannot stand inside a call, from its KW_NAMES on, or inside a delegation
    joined = before is not None and before.name in ("KW_NAMES", "PRECALL", "SEND", "YIELD_VALUE")
    return _line_of(item) is not None and not joined


_LineStarts = dict[Label, list[bool | None]]
"""Label to whether each jump to it starts a line; None if known only at run time."""


def _line_starts_of_jumps(source: Bytecode) -> _LineStarts:
    targets = _targets(source)
    starts_by_label: _LineStarts = {}
    passed: set[Label] = set()
    for item in source:
        if isinstance(item, Label):
            passed.add(item)
        elif isinstance(item, Instr) and isinstance(item.arg, Label):
            target = targets.get(item.arg)
            back = item.arg in passed and (target is None or target.name != "SEND")
            starts = back or _line_of(item) != (None if target is None else _line_of(target))
            starts_by_label.setdefault(item.arg, []).append(starts)
        elif isinstance(item, TryBegin):
            starts_by_label.setdefault(item.target, []).append(None)
    return starts_by_label


def _targets(source: Bytecode) -> dict[Label, Instr]:
    targets: dict[Label, Instr] = {}
    open_labels: list[Label] = []
    for item in source:
        if isinstance(item, Label):
            open_labels.append(item)
        elif isinstance(item, Instr):
            targets.update(dict.fromkeys(open_labels, item))
            open_labels = []
    return targets


def _with_line_hook(
    before: Instr | None, pending: list[Any], item: Instr, starts: _LineStarts, calls: _HookCalls
) -> list[Any]:
    """Return the items before ``item``: the labels in ``pending``, and a hook.

    The hook runs on every way to ``item`` that starts a line, by falling through or by a jump, and
    on no other.
    """
    line = _line_of(item)
    assert before is not None and line is not None
    falls_through = before.name not in _NEVER_FALLS_THROUGH
    fall_starts_line = falls_through and (_is_start(before) or _line_of(before) != line)
    labels = (each for each in pending if isinstance(each, Label))
    jumps = [jump for label in labels for jump in starts.get(label, ())]
    if not any(jump is not False for jump in jumps):
        call = calls.line(item) if fall_starts_line else []
        # no jump starts a line; jumps arrive after the hook
        return [*call, *pending] if jumps else [*pending, *call]
    if not all(jumps):
        # some jumps may not start a line: the hook compares lines as it runs
        return [*pending, *calls.line(item, moved=True)]
    call = calls.line(item)
    if falls_through and not fall_starts_line:
        # all jumps start a line and falling through does not: it skips the hook
        over = Label()
        return [Instr("JUMP_FORWARD", over, location=item.location), *pending, *call, over]
    return [*pending, *call]


def _line_of(item: Instr) -> int | None:
    return item.lineno if isinstance(item.lineno, int) else None
