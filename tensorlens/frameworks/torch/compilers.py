"""torch's compilers: which functions they compile, and when ``torch.compile`` reads functions.

Code that reports its own lines must not be what it compiles. The compilers are not imported for
any of this: that takes a second.
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
from tensorlens.frameworks.keras import kinds
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


def compiled_codes() -> set[int]:
    """Return the identities of code that a call of something compiled may begin with."""
    module = sys.modules.get(_FRAMES)
    # what keeps the compiler out has None there
    if not any(getattr(module, "cached_backends", {}).values()):
        return set()
    optimized: Any = getattr(module, "OptimizedModule", FunctionType)
    codes: set[int] = set()
    for each in gc.get_objects():
        # isinstance() would ask the object for its class, and somebody's may answer anything
        kind = type(each)
        if issubclass(kind, optimized):
            codes |= {id(code) for code in _codes_of(each._orig_mod)}
        elif kind is FunctionType and _ORIGINAL in (marks := each.__dict__):
            if not marks.get("_torchdynamo_disable"):
                codes |= {id(code) for code in _codes_of(marks[_ORIGINAL])}
    return codes


def _codes_of(item: Any) -> Iterator[CodeType]:
    owner = getattr(item, "__self__", None)
    if isinstance(owner, torch.nn.Module):  # module.compile() compiles its _call_impl
        item = owner
    parts = item.modules() if isinstance(item, torch.nn.Module) else [item]
    for part in parts:
        function = type(part).forward if isinstance(part, torch.nn.Module) else part
        function = getattr(function, "__func__", function)
        if isinstance(function, FunctionType):
            yield function.__code__


class TorchCompilerWatch:
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


def compiled_by(function: Any) -> str | None:
    """Return ``torch.compile``, ``torch.jit.script`` or ``torch.jit.trace``, or None.

    Looks at ``function`` and at what it wraps, without importing the compilers. A function
    that was traced is told apart from a scripted one only when it is a module: torch gives
    both the same type otherwise, and the answer is ``torch.jit.script``.
    """
    return next(filter(None, map(_compiler_of, wrapped(function))), None)


def _compiler_of(function: Any) -> str | None:
    kind = type(function)
    if issubclass(kind, _types("torch._dynamo.eval_frame", "OptimizedModule")):
        return "torch.compile"
    if issubclass(kind, _types("torch.jit._trace", "TracedModule")):
        return "torch.jit.trace"
    scripted = _types("torch.jit", "ScriptModule", "ScriptFunction")
    if issubclass(kind, (*scripted, *_types("torch._C", "ScriptMethod"))):
        return "torch.jit.script"
    marks = attributes(function)
    # torch.compiler.disable() wraps too, to the opposite effect
    if _ORIGINAL in marks and not marks.get("_torchdynamo_disable"):
        return "torch.compile"
    # Module.compile() leaves the type as it is
    return "torch.compile" if marks.get("_compiled_call_impl") is not None else None


def _types(module: str, *names: str) -> tuple[type, ...]:
    """Return those of a module's classes that exist, without importing it."""
    found = (getattr(sys.modules.get(module), name, None) for name in names)
    return tuple(item for item in found if isinstance(item, type))


def forward_of(item: Any) -> str | None:
    """Return ``forward`` when ``item`` is an instance of ``nn.Module``, else None.

    Of a layer of Keras, which is one where torch is its backend, it is ``call``.
    """
    if not issubclass(type(item), torch.nn.Module):
        return None
    return "call" if issubclass(type(item), kinds.layer()) else "forward"


def keep_compilers_out(functions: Sequence[Callable[..., Any]]) -> None:
    """Let code that ``torch.compile`` compiles call these as they are.

    As ``torch.compiler.disable`` does, but for the import of the compiler, which takes a second.
    """
    for function in functions:
        marks: Any = function
        marks._torchdynamo_disable = True
        marks._torchdynamo_disable_msg = "tensorlens looks at memory as it is"
        skip(function.__code__, deep=True)
