"""Compiled functions, scripts and graphs run as they are written, and libraries are told so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from tensorlens.planning.patches import on_import, patched
from tensorlens.planning.torch.cautions import caution

COMPILED = (
    "torch.compile was not run: the function ran as it is written. Compiled, it may keep fewer "
    "activations for backward and make fewer intermediate results, so it may take less; scratch "
    "buffers of its kernels, and the pools of CUDA graphs with mode='reduce-overhead', come on top"
)
SCRIPTED = (
    "torch.jit was not run: the function ran as it is written. Fused kernels may take less memory"
)
GRAPHED = (
    "a CUDA graph was not captured: what it was to capture ran as it is written, and a replay does "
    "nothing. A graph keeps the memory of its capture in a pool of its own: more is reserved"
)


@contextlib.contextmanager
def compiler_patches() -> Iterator[None]:
    """Let what a program would have compiled, scripted or captured run as it is written."""

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda decorated: compile(decorated, **options)
        caution(COMPILED)
        return _itself(model)

    def compile_module(module: Any, *args: Any, **kwargs: Any) -> None:
        caution(COMPILED)

    def script(obj: Any = None, *args: Any, **kwargs: Any) -> Any:
        caution(SCRIPTED)
        return obj

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        caution(GRAPHED)
        return callables

    def graph(*args: Any, **kwargs: Any) -> contextlib.nullcontext[None]:
        caution(GRAPHED)
        return contextlib.nullcontext()

    scripted: dict[str, Any] = dict.fromkeys(_OF_JIT, script)
    with (
        patched(torch, "compile", compile),
        patched(torch.nn.Module, "compile", compile_module),
        mock.patch.multiple(torch.jit, **scripted),
        patched(torch.cuda, "CUDAGraph", _CUDAGraph),
        patched(torch.cuda, "graph", graph),
        patched(torch.cuda, "make_graphed_callables", make_graphed_callables),
    ):
        yield


_OF_JIT = ("script", "trace", "freeze", "optimize_for_inference")


def _itself(model: Any) -> Any:
    if isinstance(model, torch.nn.Module):
        # programs reach through the wrapper that is not there
        vars(model)["_orig_mod"] = model
    return model


class _CUDAGraph:
    """Stands for ``torch.cuda.CUDAGraph``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def replay(self) -> None:
        """Do nothing: what was captured is there."""

    capture_begin = capture_end = reset = replay

    def pool(self) -> tuple[int, int]:
        """Return the name of a pool."""
        return 0, 0


_TRANSFORMERS = "transformers.utils.import_utils"


@contextlib.contextmanager
def tracer_patches() -> Iterator[None]:
    """Let transformers take fake tensors for real ones, whose values it looks at.

    Of fake ones it builds a mask that it leaves out where the values show that nothing is masked.
    """
    with contextlib.ExitStack() as stack:

        def change(module: ModuleType) -> None:
            if hasattr(module, "is_fake_tensor"):
                stack.enter_context(patched(module, "is_fake_tensor", lambda tensor: False))

        stack.enter_context(on_import({_TRANSFORMERS: change}))
        yield
