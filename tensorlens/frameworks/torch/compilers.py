"""torch.compile: what it has compiled, when it reads functions, and functions kept out of it.

It must not compile code that reports its own lines. Nothing here imports it: that takes a second.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from tensorlens.frameworks.compilers import attributes, wrapped
from tensorlens.frameworks.registry import when_imported

_EVAL_FRAME = "torch._dynamo.eval_frame"
_CALLBACK_MODULE = "torch._dynamo.callback"
_ORIGINAL = "_torchdynamo_orig_callable"


def skip(code: CodeType, *, deep: bool) -> None:
    """Keep frames of ``code`` uncompiled, and with ``deep`` those of the functions they call."""
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction
        beneath = action.SKIP if deep else action.DEFAULT
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, beneath))
    except (ImportError, AttributeError):  # before torch 2.7
        return


def has_compiled() -> bool:
    """Return whether ``torch.compile`` was called since the last ``torch._dynamo.reset()``."""
    # torch.compiler.disable() has None there
    return any(getattr(sys.modules.get(_EVAL_FRAME), "cached_backends", {}).values())


def compiled_codes() -> set[int]:
    """Return the ``id()`` of each code object that a call of something compiled may run first."""
    if not has_compiled():
        return set()
    optimized: Any = getattr(sys.modules[_EVAL_FRAME], "OptimizedModule", FunctionType)
    codes: set[int] = set()
    for each in gc.get_objects():
        # isinstance() would read the object's __class__, which may run code of the program
        kind = type(each)
        if issubclass(kind, optimized):
            codes |= {id(code) for code in _codes_of(each._orig_mod)}
        elif kind is FunctionType and _ORIGINAL in (marks := each.__dict__):
            if not marks.get("_torchdynamo_disable"):
                codes |= {id(code) for code in _codes_of(marks[_ORIGINAL])}
    return codes


def _codes_of(item: Any) -> Iterator[CodeType]:
    owner = getattr(item, "__self__", None)
    if isinstance(owner, torch.nn.Module):  # module.compile() compiles the bound _call_impl
        item = owner
    parts = item.modules() if isinstance(item, torch.nn.Module) else [item]
    for part in parts:
        function = type(part).forward if isinstance(part, torch.nn.Module) else part
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType):
            yield function.__code__


class TorchCompilerWatch:
    """Calls ``callback`` before ``torch.compile`` reads functions, until :meth:`stop`.

    When ``torch.compile`` is called, the argument is the ``id()`` of each code object to be read.
    When compilation starts, it is None: any function that the compiled one calls may be read.
    """

    def __init__(self, callback: Callable[[Container[int] | None], None]) -> None:
        self._is_on = True
        self._callback = lambda *_: callback(None)
        self._original = real = torch.compile

        @functools.wraps(real)
        def compile_watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_on:
                self.renew()
                item = args[0] if args else kwargs.get("model")
                callback({id(code) for code in _codes_of(item)})
            return real(*args, **kwargs)

        compile_watched._tensorlens_watch = self  # type: ignore[attr-defined]
        self._wrapper = torch.compile = compile_watched
        self._stop_waiting = when_imported(_CALLBACK_MODULE, self.renew)

    def renew(self) -> None:
        """Register again, as ``torch._dynamo.reset()`` drops the callback."""
        handler = _handler()
        if handler is not None and self._callback not in handler.start_callbacks:
            handler.register_start_callback(self._callback)

    def stop(self) -> None:
        """Restore ``torch.compile`` and unregister."""
        self._is_on = False
        # earlier watches that were stopped while this one was on top are removed now
        watch: Any = self
        while watch is not None and torch.compile is watch._wrapper and not watch._is_on:
            torch.compile = watch._original
            watch = getattr(torch.compile, "_tensorlens_watch", None)
        self._stop_waiting()
        handler = _handler()
        if handler is not None and self._callback in handler.start_callbacks:
            handler.start_callbacks.remove(self._callback)


def _handler() -> Any:
    return getattr(sys.modules.get(_CALLBACK_MODULE), "callback_handler", None)


def compiled_by(function: Any) -> str | None:
    """Return ``torch.compile`` if that compiled ``function`` or what it wraps, else None."""
    return "torch.compile" if any(map(_is_compiled, wrapped(function))) else None


def _is_compiled(function: Any) -> bool:
    module: type | tuple[()] = getattr(sys.modules.get(_EVAL_FRAME), "OptimizedModule", ())
    marks = attributes(function)
    return (
        issubclass(type(function), module)
        # torch.compiler.disable() wraps too, to the opposite effect
        or (_ORIGINAL in marks and not marks.get("_torchdynamo_disable"))
        # Module.compile() leaves the type as it is
        or marks.get("_compiled_call_impl") is not None
    )


def keep_compilers_out(functions: Sequence[Callable[..., Any]]) -> None:
    """Let compiled code call these functions as they are.

    Does what ``torch.compiler.disable`` does, without importing the compiler.
    """
    for function in functions:
        marks: Any = function
        marks._torchdynamo_disable = True
        marks._torchdynamo_disable_msg = "tensorlens looks at memory as it is"
        skip(function.__code__, deep=True)
