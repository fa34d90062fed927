"""Callables that switch the tracer on while they run and change nothing else.

``line_profiler``'s mixin tells the kinds of callables apart and rebuilds methods, properties and
partials around what is defined here. Its own generator and coroutine wrappers are not used: they
lose return values and what is thrown in.
"""

from __future__ import annotations

import functools
import inspect
import keyword
import types
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

from line_profiler.profiler_mixin import ByCountProfilerMixin

from tensorlens.frameworks.compilers import compiler
from tensorlens.lines.call_scope import CallScope


class WrappingMixin(ByCountProfilerMixin):  # type: ignore[misc]
    """Wraps functions, generators, coroutines and async generators transparently."""

    def _region(self, function: Any) -> CallScope:
        raise NotImplementedError

    def wrap_function(self, func: Any) -> Any:
        """Return ``func`` with the tracer on while it runs."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)
        # no globals: see _among_the_names_of
        mark, probe, hand_over = region.mark_compiled, compiler, _handing_over

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if probe.is_tracing():
                mark()
                return func(*args, **kwargs)
            if probe.is_building():
                region.mark_traced()
                return probe.as_called(func)(*args, **kwargs)
            call, given = hand_over(args, kwargs)
            del args
            entered = None
            try:
                target = region.target(func)
                entered = region.enter()
                result = call(target, given, kwargs)
            except BaseException as error:
                region.leave(entered, error)
                region.over(error)
                raise
            region.leave(entered, None)
            region.over(None)
            return result

        made = self._mark_wrapper(_among_the_names_of(func, wrapper))
        # autograph is to convert what is inside and not this; see Compiler.as_called
        made.autograph_info__ = {}
        return made

    def wrap_generator(self, func: Any) -> Any:
        """Return a generator function with the tracer on while its generators run."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            call, given = _handing_over(args, kwargs)
            del args
            closed: list[Any] = []
            try:
                return (yield from _steps(call(region.target(func), given, kwargs), region, closed))
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
            call, given = _handing_over(args, kwargs)
            del args
            return await _Awaiting(call(region.target(func), given, kwargs), region)

        return self._mark_wrapper(wrapper)

    def wrap_async_generator(self, func: Any) -> Any:
        """Return an async generator function with the tracer on while its generators run."""
        if self._already_a_wrapper(func):
            return func
        region = self._region(func)

        @functools.wraps(func)
        async def wrapper(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            call, given = _handing_over(args, kwargs)
            del args
            inner = call(region.target(func), given, kwargs)
            step: Awaitable[Any] = inner.__anext__()
            while True:
                try:
                    items = [await _Awaiting(step, region, whole=False)]
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
    inner: Any, region: CallScope, closed: list[Any] | None = None, *, whole: bool = True
) -> Generator[Any, Any, Any]:
    """``yield from inner`` (PEP 380), with the tracer on only while ``inner`` runs.

    ``closed`` receives what ``inner.close()`` returns, if anything (Python 3.13 and later);
    ``whole`` is False for one step of many. Nothing that passes through is kept in a local: a
    batch that its consumer drops must go.
    """
    resume, passing = inner.send, [None]
    while True:
        entered = None
        try:
            entered = region.enter()
            passing.append(resume(passing.pop()))
        except StopIteration as end:
            region.leave(entered, None)
            if whole:
                region.over(None)
            return end.value
        except BaseException as error:
            region.leave(entered, error)
            region.over(None if isinstance(error, StopAsyncIteration) else error)
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
                region.over(None)
            raise
        except BaseException as error:
            passing.append(error)  # type: ignore[arg-type]
            resume = inner.throw


class _Awaiting:
    """The awaitable form of :func:`_steps`."""

    __slots__ = ("_inner", "_region", "_whole")

    def __init__(self, inner: Any, region: CallScope, *, whole: bool = True) -> None:
        self._inner = inner
        self._region = region
        self._whole = whole

    def __await__(self) -> Generator[Any, Any, Any]:
        return _steps(self._inner, self._region, whole=self._whole)


def _among_the_names_of(function: Any, wrapper: Any) -> Any:
    """Return ``wrapper`` as a wrapper of ``function`` that has the same globals.

    ``torch.jit.script`` compiles the source of the function below every wrapper, but looks up its
    names where the outermost one was made (torch/_jit_internal.py, get_closure).
    """
    inner = inspect.unwrap(function)
    if isinstance(inner, types.FunctionType):
        wrapper = types.FunctionType(
            wrapper.__code__, inner.__globals__, wrapper.__name__, None, wrapper.__closure__
        )
    wrapper = functools.update_wrapper(wrapper, function)
    # Keras asks inspect.getfullargspec for the arguments of __init__, which looks at no __wrapped__
    if wrapper.__name__ == "__init__" or not _is_method(wrapper):
        with suppress(TypeError, ValueError):
            wrapper.__signature__ = inspect.signature(function)
    return wrapper


def _is_method(function: Any) -> bool:
    """Tell whether a function is defined in the body of a class.

    ``functools.wraps`` of a bound one (of Keras, around ``build``) copies its attributes: a
    signature among them would be taken for the wrapper's own, ``self`` included.
    """
    return function.__qualname__.rpartition(".")[0].rpartition(".")[2] not in ("", "<locals>")


_Call = Callable[[Any, list[Any], dict[str, Any]], Any]


def _handing_over(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[_Call, list[Any]]:
    """Return what calls a function with arguments that nobody else then holds.

    ``func(*args)`` would keep the arguments alive until it returns; without the wrapper, a
    function that drops its argument frees it.
    """
    return _call_of(len(args), tuple(kwargs)), list(reversed(args))


def _is_plain_name(name: str) -> bool:
    # an assignment to __debug__ is refused; names beyond ASCII are normalised where they are read
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
    made: _Call = eval(code, {"__builtins__": {}})
    return made
