"""Wrappers that switch the tracer on while a callable runs and change nothing else.

``line_profiler``'s mixin distinguishes kinds of callables and rebuilds methods, properties and
partials around the wrappers defined here. Its own wrappers of generators and coroutines lose
return values and thrown exceptions.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from types import FunctionType
from typing import Any, NamedTuple

from line_profiler.profiler_mixin import ByCountProfilerMixin

from tensorlens.frameworks.compilers import compiler
from tensorlens.lines.functions import ProfiledFunction, compile_mark
from tensorlens.lines.tracing.accounts import Switch
from tensorlens.lines.tracing.activation import Activation, note_failure
from tensorlens.lines.tracing.engine import Engine, ThreadState
from tensorlens.lines.tracing.tracer import original

CallEnded = Callable[[ProfiledFunction, BaseException | None], None]


class ScopeState(NamedTuple):
    """State for :meth:`CallScope.leave` to undo."""

    thread: ThreadState
    height: int
    compiled_call: Activation | None
    """Activation of a function whose lines are compiled away: no event ends it."""


class UnmeasuredScope:
    """The scope of a wrapped function that was pickled by value into another process."""

    def target(self, function: Any) -> Any:
        """Return what to call: ``function`` itself."""
        return function

    def enter(self, *_: Any) -> None:
        """Do nothing."""

    leave = call_ended = mark_traced = mark_compiled = enter


class CallScope:
    """The scope of the calls of one wrapped function: switches the tracer on and off."""

    def __init__(
        self,
        engine: Engine,
        switch: Switch,
        entry: ProfiledFunction,
        on_call_ended: CallEnded,
    ) -> None:
        self._engine = engine
        self._switch = switch
        self._entry = entry
        self._on_call_ended = on_call_ended
        self._targets: dict[int, Any] = {}
        self.mark_compiled = compile_mark(entry)

    def __reduce__(self) -> tuple[type[UnmeasuredScope], tuple[()]]:
        # cloudpickle sends a function of __main__ with its closure; the profiler stays here
        return UnmeasuredScope, ()

    def enter(self) -> ScopeState | None:
        """Switch on; a function whose lines are compiled away is measured as a whole."""
        try:
            return self._enter()
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)
            return None

    def target(self, function: Any) -> Any:
        """Return a function that reports its lines, to call in place of ``function``."""
        if id(function) not in self._targets:
            self._targets[id(function)] = self._twin_of(function)
        return self._targets[id(function)]

    def leave(self, entered: ScopeState | None, error: BaseException | None) -> None:
        """Switch off."""
        try:
            thread = self._engine.thread() if entered is None else entered.thread
        except Exception as failure:
            # the counters failed: nothing was switched on
            note_failure((self._entry.account,), "a call", failure)
            return
        interrupted = thread.interrupted or isinstance(error, KeyboardInterrupt)
        thread.interrupted = True  # until all is undone: another interrupt may end it half way
        if entered is not None:
            _, height, activation = entered
            self._switch.off()
            if height:
                thread.lower_recursion_limit(height)
            try:
                if activation and (activation.start is not None or error is not None):
                    activation.finish(error)
            except Exception as failure:
                note_failure((self._entry.account,), "a line", failure)
            finally:
                thread.depth -= 1
                if len(thread.stack) > height:
                    thread.unwind(height)
        thread.interrupted = interrupted

    def mark_traced(self) -> None:
        """Count a call that only builds a graph."""
        self._entry.account.traced += 1

    def call_ended(self, error: BaseException | None) -> None:
        """Report the end of a call, by ``error`` if given."""
        if error is not None:
            self._engine.explain(error)
        try:
            self._on_call_ended(self._entry, error)
        except Exception as failure:
            note_failure((self._entry.account,), "a call", failure)

    def _enter(self) -> ScopeState:
        thread = self._engine.enable()
        self._switch.on()
        height = len(thread.stack)
        if height:
            thread.raise_recursion_limit(height)
        activation = None
        if self._entry.compiler is not None:
            account = self._entry.account
            activation = Activation(account.code, (account,), thread)
            activation.enter()
            try:
                activation.line(self._entry.first_line)
            except Exception as failure:
                activation.fail(failure)
        return ScopeState(thread, height, activation)

    def _twin_of(self, function: Any) -> Any:
        account = self._entry.account
        if type(function) is not FunctionType or original(function.__code__) is not account.code:
            return function
        try:
            return self._engine.tracer.source.twin(function, account.code)
        except Exception as failure:
            note_failure((account,), "a call", failure)
            return function


class WrappingMixin(ByCountProfilerMixin):  # type: ignore[misc]
    """Transparent wrappers of functions, generators, coroutines and async generators."""

    def _region(self, function: Any) -> CallScope:
        raise NotImplementedError

    def wrap_function(self, func: Any) -> Any:
        """Return ``func`` with the tracer on while it runs."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)
        # no globals: see _with_globals_of
        mark, probe, moving_call = region.mark_compiled, compiler, _moving_call

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if probe.is_tracing():
                mark()
                return func(*args, **kwargs)
            if probe.is_building():
                region.mark_traced()
                return probe.as_called(func)(*args, **kwargs)
            call, given = moving_call(args, kwargs)
            del args
            entered = None
            try:
                target = region.target(func)
                entered = region.enter()
                result = call(target, given, kwargs)
            except BaseException as error:
                region.leave(entered, error)
                region.call_ended(error)
                raise
            region.leave(entered, None)
            region.call_ended(None)
            return result

        wrapped = self._mark_wrapper(_with_globals_of(func, wrapper))
        # autograph is to convert the function inside; see Compiler.as_called
        wrapped.autograph_info__ = {}
        return wrapped

    def wrap_generator(self, func: Any) -> Any:
        """Return a generator function with the tracer on while its generators run."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            inner = region.target(func)(*args, **kwargs)
            del args, kwargs
            closed: list[Any] = []
            try:
                return (yield from _steps(inner, region, closed))
            except GeneratorExit:
                if closed:
                    return closed.pop()
                raise

        return self._mark_wrapper(wrapper)

    def wrap_coroutine(self, func: Any) -> Any:
        """Return a coroutine function with the tracer on while its coroutines run."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)

        @functools.wraps(func)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            inner = region.target(func)(*args, **kwargs)
            del args, kwargs
            return await _Awaiting(inner, region)

        return self._mark_wrapper(wrapper)

    def wrap_async_generator(self, func: Any) -> Any:
        """Return an async generator function with the tracer on while its generators run."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)

        @functools.wraps(func)
        async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            inner = region.target(func)(*args, **kwargs)
            del args, kwargs
            step: Awaitable[Any] = inner.__anext__()
            while True:
                try:
                    items = [await _Awaiting(step, region, is_whole_call=False)]
                except StopAsyncIteration:
                    return
                try:
                    sent = yield items.pop()
                except GeneratorExit:
                    await _Awaiting(inner.aclose(), region)
                    raise
                except BaseException as error:
                    step = inner.athrow(error)
                else:
                    step = inner.asend(sent)
                    del sent

        return self._mark_wrapper(wrapper)


def _steps(
    inner: Any, region: CallScope, closed: list[Any] | None = None, *, is_whole_call: bool = True
) -> Generator[Any, Any, Any]:
    """``yield from inner`` (PEP 380), with the tracer on only while ``inner`` runs.

    ``closed`` receives what ``inner.close()`` returns, if anything (Python 3.13 and later);
    ``is_whole_call`` is False for one step of many. No passing value is kept in a local: a batch
    that its consumer drops must be freed.
    """
    resume, passing = inner.send, [None]
    while True:
        entered = None
        try:
            entered = region.enter()
            passing.append(resume(passing.pop()))
        except StopIteration as end:
            region.leave(entered, None)
            if is_whole_call:
                region.call_ended(None)
            return end.value
        except BaseException as error:
            region.leave(entered, error)
            region.call_ended(None if isinstance(error, StopAsyncIteration) else error)
            raise
        region.leave(entered, None)
        try:
            passing.append((yield passing.pop()))
            resume = inner.send
        except GeneratorExit:
            entered = None
            try:
                entered = region.enter()
                value = inner.close()
                if value is not None and closed is not None:
                    closed.append(value)
            finally:
                region.leave(entered, None)
                region.call_ended(None)
            raise
        except BaseException as error:
            passing.append(error)  # type: ignore[arg-type]
            resume = inner.throw


class _Awaiting:
    """The awaitable form of :func:`_steps`."""

    __slots__ = ("_inner", "_is_whole_call", "_region")

    def __init__(self, inner: Any, region: CallScope, *, is_whole_call: bool = True) -> None:
        self._inner = inner
        self._region = region
        self._is_whole_call = is_whole_call

    def __await__(self) -> Generator[Any, Any, Any]:
        return _steps(self._inner, self._region, is_whole_call=self._is_whole_call)


def _with_globals_of(function: Any, wrapper: Any) -> Any:
    """Return ``wrapper`` with the globals of ``function``, as its wrapper.

    ``torch.jit.script`` compiles the source of the innermost function, but looks up its names in
    the globals of the outermost wrapper (torch/_jit_internal.py, get_closure).
    """
    inner = inspect.unwrap(function)
    if isinstance(inner, types.FunctionType):
        wrapper = types.FunctionType(
            wrapper.__code__, inner.__globals__, wrapper.__name__, None, wrapper.__closure__
        )
    wrapper = functools.update_wrapper(wrapper, function)
    # Keras reads arguments of __init__ by inspect.getfullargspec, which ignores __wrapped__
    if wrapper.__name__ == "__init__" or not _is_method(wrapper):
        with suppress(TypeError, ValueError):
            wrapper.__signature__ = inspect.signature(function)
    return wrapper


def _is_method(function: Any) -> bool:
    """Return whether a function is defined in the body of a class.

    ``functools.wraps`` of a bound method (Keras's, around ``build``) copies its attributes: a
    signature would then count as that of the outer wrapper, ``self`` included.
    """
    return function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>")


_Call = Callable[[Any, list[Any], dict[str, Any]], Any]


def _moving_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Call, list[Any]]:
    """Return a callable that moves the arguments into a call, and the arguments, reversed.

    ``func(*args)`` would keep the arguments alive until it returns; without a wrapper, a function
    that drops its argument frees it.
    """
    return _call_of(len(args), tuple(kwargs)), list(reversed(args))


def _is_plain_name(name: str) -> bool:
    # an assignment to __debug__ is refused; non-ASCII names are normalised when read
    assignable = name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"
    return assignable and name.isascii()


@functools.lru_cache(maxsize=256)
def _call_of(count: int, names: tuple[str, ...]) -> _Call:
    if count + len(names) > 32 or not all(map(_is_plain_name, names)):
        return lambda func, given, named: func(*reversed(given), **named)
    parts = ["given.pop()"] * count + [f"{name}=named.pop({name!r})" for name in names]
    code: types.CodeType = compile(
        f"lambda func, given, named: func({', '.join(parts)})", "<tensorlens call>", "eval"
    )
    call: _Call = eval(code, {"__builtins__": {}})
    return call
