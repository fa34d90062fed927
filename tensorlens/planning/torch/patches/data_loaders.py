"""Data loaders, threads and generators of a run without data: in one process, with its modes."""

from __future__ import annotations

import contextlib
import inspect
import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, _pop_mode, _push_mode
from torch.utils.data import DataLoader, RandomSampler

from tensorlens.planning.patches import intercepted
from tensorlens.planning.torch.cautions import caution

LONG = 1 << 20
"""Items from which on a random order is drawn as it is needed, instead of a permutation."""

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


@contextlib.contextmanager
def loader_patches() -> Iterator[None]:
    """Let data loaders work in this process alone, and draw random orders as they are needed."""
    with (
        intercepted(_without_workers, (DataLoader, "__init__")),
        intercepted(_draw, (RandomSampler, "__iter__")),
    ):
        yield


def _without_workers(init: Any, *args: Any, **kwargs: Any) -> None:
    bound = inspect.signature(init).bind(*args, **kwargs)
    given = bound.arguments
    _say(given)
    for name, value in _OF_WORKERS.items():
        if name in given:
            given[name] = value
    init(*bound.args, **bound.kwargs)


def _draw(order: Any, sampler: Any) -> Iterator[int]:
    size = len(sampler.data_source)
    if size <= LONG:
        return order(sampler)  # type: ignore[no-any-return]
    return _drawn(size, sampler.num_samples)


def _say(given: dict[str, Any]) -> None:
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


def _drawn(size: int, count: int) -> Iterator[int]:
    """Give items of a long data set in an order that takes no memory; a few may come twice."""
    source = random.Random(0)
    for _ in range(count):
        yield source.randrange(size)


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
