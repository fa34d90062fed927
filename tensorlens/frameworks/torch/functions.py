"""Tells which functions torch compiles, and where a module computes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from torch.nn import Module

from tensorlens.frameworks.census.wrappers import attributes, wrapped
from tensorlens.frameworks.keras import kinds
from tensorlens.frameworks.torch.compiler_watch import skip


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
    if issubclass(kind, _types("torch.jit", "ScriptModule", "ScriptFunction")):
        return "torch.jit.script"
    if issubclass(kind, _types("torch._C", "ScriptMethod")):
        return "torch.jit.script"
    marks = attributes(function)
    # torch.compiler.disable() wraps too, to the opposite effect
    if "_torchdynamo_orig_callable" in marks and not marks.get("_torchdynamo_disable"):
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
    if not issubclass(type(item), Module):
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
    for function in functions:
        skip(function.__code__, deep=True)
