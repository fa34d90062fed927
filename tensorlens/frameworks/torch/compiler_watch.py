"""Watches ``torch.compile``: when it comes to read functions, and which ones.

Code that reports its own lines must not be what it compiles. The compiler is not imported for
any of this: that takes a second.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Container, Iterator
from types import CodeType
from typing import Any

import torch

from tensorlens.frameworks.import_hooks import when_imported

_FRAMES = "torch._dynamo.eval_frame"
_CALLBACKS = "torch._dynamo.callback"


def skip(code: CodeType, *, deep: bool) -> None:
    """Have frames of ``code`` run as they are, and what they call (``deep``) too."""
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction
        beneath = action.SKIP if deep else action.DEFAULT
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, beneath))
    except (ImportError, AttributeError):  # before torch 2.7
        return


def compiled_codes() -> set[int]:
    """Return the identities of code that a call of something compiled may begin with."""
    module = sys.modules.get(_FRAMES)
    # what keeps the compiler out has None there
    if not any(getattr(module, "cached_backends", {}).values()):
        return set()
    optimized: Any = getattr(module, "OptimizedModule", _FUNCTION)
    codes: set[int] = set()
    for each in gc.get_objects():
        # isinstance() would ask the object for its class, and somebody's may answer anything
        kind = type(each)
        if issubclass(kind, optimized):
            codes |= {id(code) for code in _codes_of(each._orig_mod)}
        elif kind is _FUNCTION and _ORIGINAL in (marks := each.__dict__):
            if not marks.get("_torchdynamo_disable"):
                codes |= {id(code) for code in _codes_of(marks[_ORIGINAL])}
    return codes


_FUNCTION = type(skip)
_ORIGINAL = "_torchdynamo_orig_callable"


def _codes_of(item: Any) -> Iterator[CodeType]:
    owner = getattr(item, "__self__", None)
    if isinstance(owner, torch.nn.Module):  # module.compile() compiles its _call_impl
        item = owner
    parts = item.modules() if isinstance(item, torch.nn.Module) else [item]
    for part in parts:
        function = type(part).forward if isinstance(part, torch.nn.Module) else part
        function = getattr(function, "__func__", function)
        if isinstance(function, _FUNCTION):
            yield function.__code__


class CompilerWatch:
    """Calls ``callback`` before ``torch.compile`` reads functions, until :meth:`stop`.

    It gets the identities of the code that is read when ``torch.compile`` is called, and None when
    what is compiled runs for the first time: then any function that it calls may be read.
    """

    def __init__(self, callback: Callable[[Container[int] | None], None]) -> None:
        self._callback = lambda *_: callback(None)
        self._compile = real = torch.compile

        @functools.wraps(real)
        def compile_after(*args: Any, **kwargs: Any) -> Any:
            self.renew()
            item = args[0] if args else kwargs.get("model")
            callback({id(code) for code in _codes_of(item)})
            return real(*args, **kwargs)

        self._ours = torch.compile = compile_after
        self._wait_no_longer = when_imported(_CALLBACKS, self.renew)

    def renew(self) -> None:
        """Begin again where ``torch._dynamo.reset()`` has forgotten us."""
        handler = _handler()
        if handler is not None and self._callback not in handler.start_callbacks:
            handler.register_start_callback(self._callback)

    def stop(self) -> None:
        """Undo it all."""
        if torch.compile is self._ours:
            torch.compile = self._compile
        self._wait_no_longer()
        handler = _handler()
        if handler is not None and self._callback in handler.start_callbacks:
            handler.start_callbacks.remove(self._callback)


def _handler() -> Any:
    return getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
