"""Functions of torch and Python that are replaced while a program runs without data.

Compiled functions, scripts and graphs run as they are written; loaders work in this process alone.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils.data import DataLoader

from tensorlens.planning.patches import intercepted, on_import, patched
from tensorlens.planning.torch.checkpoint_files import checkpoint_file_patches
from tensorlens.planning.trace import caution

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
    """Let functions run as they are written, not compiled, scripted or captured."""

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda decorated: compile(decorated, **options)
        caution(COMPILED)
        if isinstance(model, torch.nn.Module):
            # programs look for the module inside the wrapper
            vars(model)["_orig_mod"] = model
        return model

    def as_written(text: str) -> Any:
        def call(function: Any = None, *args: Any, **kwargs: Any) -> Any:
            caution(text)
            return function

        return call

    def graph(*args: Any, **kwargs: Any) -> contextlib.nullcontext[None]:
        caution(GRAPHED)
        return contextlib.nullcontext()

    functions_of_jit = ("script", "trace", "freeze", "optimize_for_inference")
    scripted: dict[str, Any] = dict.fromkeys(functions_of_jit, as_written(SCRIPTED))
    with (
        patched(torch, "compile", compile),
        patched(torch.nn.Module, "compile", as_written(COMPILED)),
        mock.patch.multiple(torch.jit, **scripted),
        patched(torch.cuda, "CUDAGraph", NoOp),
        patched(torch.cuda, "graph", graph),
        patched(torch.cuda, "graph_pool_handle", lambda: (0, 0)),
        patched(torch.cuda, "make_graphed_callables", as_written(GRAPHED)),
    ):
        yield


class NoOp:
    """An object whose methods do nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@contextlib.contextmanager
def program_patches() -> Iterator[None]:
    """Replace functions that need data, files, processes or a compiler."""
    with contextlib.ExitStack() as stack:

        def patch_tracers(module: ModuleType) -> None:
            # for fake tensors transformers makes a mask that it omits if real values need none
            if hasattr(module, "is_fake_tensor"):
                stack.enter_context(patched(module, "is_fake_tensor", lambda tensor: False))

        for call, owner, name in _INTERCEPTED:
            stack.enter_context(intercepted(call, (owner, name)))
        # a copied mode would count each tensor of the copy as a real one
        stack.enter_context(patched(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode))
        stack.enter_context(compiler_patches())
        stack.enter_context(checkpoint_file_patches())
        stack.enter_context(on_import({"transformers.utils.import_utils": patch_tracers}))
        yield


_OF_WORKERS = {
    "num_workers": 0,
    "prefetch_factor": None,
    "persistent_workers": False,
    "multiprocessing_context": None,
    "timeout": 0,
    "worker_init_fn": None,
    "pin_memory": False,
}
"""Arguments of a ``DataLoader`` that start processes or threads, and values that do not."""


def _without_workers(init: Any, *args: Any, **kwargs: Any) -> None:
    bound = inspect.signature(init).bind(*args, **kwargs)
    given = bound.arguments
    if given.get("num_workers"):
        caution(
            f"a DataLoader of {given['num_workers']} workers loaded without them: their host "
            "memory, and that of the batches they hold ready, is not in the estimate; the "
            "device's memory is the same"
        )
    if given.get("pin_memory"):
        caution(
            "a DataLoader pins memory: the pinned copies of its batches on the host are not in the "
            "estimate; the device's memory is the same"
        )
    for name, value in _OF_WORKERS.items():
        if name in given:
            given[name] = value
    init(*bound.args, **bound.kwargs)


def _start(start: Any, thread: Any) -> None:
    """Let a thread have the dispatch modes of the thread that starts it."""
    vars(thread)["_fake_modes"] = _get_current_dispatch_mode_stack()
    start(thread)


def _run(run: Any, thread: Any) -> None:
    modes = vars(thread).pop("_fake_modes", ())
    for mode in modes:
        _push_mode(mode)
    try:
        # a setting of the thread
        with torch.autograd.set_multithreading_enabled(False):
            run(thread)
    finally:
        for _ in modes:
            _pop_mode()


def _counted(get_rng_state: Any) -> Any:
    """Return a random state whose bytes count: checkpoints keep one for every call."""
    state = get_rng_state()
    # freed with the state, which is real: it may be given to a generator
    state._counted = torch.empty(len(state), dtype=torch.uint8, device="cpu")
    return state


def _copied(original: Any, tensor: Any, memo: Any) -> Any:
    """Copy a fake tensor as ``copy.deepcopy`` does a real one."""
    if not tensor.is_leaf or tensor.layout is not torch.strided:
        return original(tensor, memo)
    if id(tensor) not in memo:
        with torch.no_grad():
            memo[id(tensor)] = _copy(tensor, memo)
    return memo[id(tensor)]


def _copy(tensor: Any, memo: Any) -> Any:
    data = tensor.data.clone(memory_format=torch.preserve_format)
    if getattr(tensor, "_is_param", False):
        # no gradient, as in torch/nn/parameter.py
        return torch.nn.Parameter(data, tensor.requires_grad)
    data.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        data.grad = copy.deepcopy(tensor.grad, memo)
    return data


_INTERCEPTED = (
    (_without_workers, DataLoader, "__init__"),
    (_start, threading.Thread, "start"),
    (_run, threading.Thread, "run"),
    (_counted, torch.random, "get_rng_state"),
    (_counted, torch, "get_rng_state"),
    (_copied, FakeTensor, "__deepcopy__"),
)
"""Replacements, each with the owner and the name of the function that it replaces."""
