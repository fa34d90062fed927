"""Parts of torch replaced while a program runs without data: compilers, data loaders, threads.

Compiled functions, scripts and graphs run as they are written; loaders work in this process alone.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils.data import DataLoader

from tensorlens.planning.patches import intercepted, on_import, patched
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
    """Let what a program would have compiled, scripted or captured run as it is written."""

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda decorated: compile(decorated, **options)
        caution(COMPILED)
        if isinstance(model, torch.nn.Module):
            # programs reach through the wrapper that is not there
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
        patched(torch.cuda, "CUDAGraph", Silent),
        patched(torch.cuda, "graph", graph),
        patched(torch.cuda, "graph_pool_handle", lambda: (0, 0)),
        patched(torch.cuda, "make_graphed_callables", as_written(GRAPHED)),
    ):
        yield


class Silent:
    """Does nothing, whatever it is told."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


@contextlib.contextmanager
def tracer_patches() -> Iterator[None]:
    """Let transformers take fake tensors for real ones, whose values it looks at.

    Of fake ones it builds a mask that it leaves out where the values show that nothing is masked.
    """
    with contextlib.ExitStack() as stack:

        def change(module: ModuleType) -> None:
            if hasattr(module, "is_fake_tensor"):
                stack.enter_context(patched(module, "is_fake_tensor", lambda tensor: False))

        stack.enter_context(on_import({"transformers.utils.import_utils": change}))
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
"""Arguments of a ``DataLoader`` that ask for processes or threads, and what asks for none."""


def loader_patches() -> AbstractContextManager[None]:
    """Let data loaders work in this process alone."""
    return intercepted(_without_workers, (DataLoader, "__init__"))


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


@contextlib.contextmanager
def thread_modes() -> Iterator[None]:
    """Let threads that are started while it is entered have the modes of the one starting them."""
    with (
        intercepted(_start, (threading.Thread, "start")),
        intercepted(_run, (threading.Thread, "run")),
    ):
        yield


def _start(start: Any, thread: Any) -> None:
    vars(thread)["_fake_modes"] = _get_current_dispatch_mode_stack()
    start(thread)


def _run(run: Any, thread: Any) -> None:
    modes = vars(thread).pop("_fake_modes", ())
    for mode in modes:
        _push_mode(mode)
    try:
        # it goes by thread
        with torch.autograd.set_multithreading_enabled(False):
            run(thread)
    finally:
        for _ in modes:
            _pop_mode()


def random_states() -> AbstractContextManager[None]:
    """Count each state while it is there: ``torch.utils.checkpoint`` keeps one for every call."""
    return intercepted(_counted, (torch.random, "get_rng_state"), (torch, "get_rng_state"))


def _counted(get_rng_state: Any) -> Any:
    state = get_rng_state()
    # what is counted goes when the state does, which is real: it may be given to a generator
    state._counted = torch.empty(len(state), dtype=torch.uint8, device="cpu")
    return state
