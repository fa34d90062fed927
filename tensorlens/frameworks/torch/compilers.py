"""torch's compilers: which functions they compile, and when ``torch.compile`` reads functions.

Code that reports its own lines must not be what it compiles. The compilers are not imported for
any of this: that takes a second.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any

import torch

from tensorlens.frameworks.compilers import attributes, wrapped
from tensorlens.frameworks.registry import when_imported

_FRAMES = "torch._dynamo.eval_frame"
_CALLBACKS = "torch._dynamo.callback"
_ORIGINAL = "_torchdynamo_orig_callable"


def skip(code: CodeType, *, deep: bool) -> None:
    """Have frames of ``code`` run as they are, and what they call (``deep``) too."""
    try:
        from torch._C._dynamo import eval_frame

        action = eval_frame._FrameAction
        beneath = action.SKIP if deep else action.DEFAULT
        eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, beneath))
    except (ImportError, AttributeError):  # before torch 2.7
        return


def has_compiled() -> bool:
    """Tell whether ``torch.compile`` was called since the last ``torch._dynamo.reset()``."""
    # what keeps the compiler out has None there
    return any(getattr(sys.modules.get(_FRAMES), "cached_backends", {}).values())


class TorchCompilerWatch:
    """Calls ``callback`` before ``torch.compile`` reads functions, until :meth:`stop`.

    That is when it is called, and when what it returned first runs.
    """

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = lambda *_: callback()
        self._compile = real = torch.compile

        @functools.wraps(real)
        def compile_after(*args: Any, **kwargs: Any) -> Any:
            self.renew()
            callback()
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


def compiled_by(function: Any) -> str | None:
    """Return ``torch.compile`` if that compiled ``function`` or what it wraps, else None."""
    return "torch.compile" if any(map(_is_compiled, wrapped(function))) else None


def _is_compiled(function: Any) -> bool:
    module: type | tuple[()] = getattr(sys.modules.get(_FRAMES), "OptimizedModule", ())
    marks = attributes(function)
    return (
        issubclass(type(function), module)
        # torch.compiler.disable() wraps too, to the opposite effect
        or (_ORIGINAL in marks and not marks.get("_torchdynamo_disable"))
        # Module.compile() leaves the type as it is
        or marks.get("_compiled_call_impl") is not None
    )


def keep_compilers_out(functions: Sequence[Callable[..., Any]]) -> None:
    """Let code that ``torch.compile`` compiles call these as they are.

    As ``torch.compiler.disable`` does, but for the import of the compiler, which takes a second.
    """
    for function in functions:
        marks: Any = function
        marks._torchdynamo_disable = True
        marks._torchdynamo_disable_msg = "tensorlens looks at memory as it is"
        skip(function.__code__, deep=True)
