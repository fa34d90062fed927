"""Tensors of DistributedDataParallel's reducer, which is C++: no object of Python's holds them.

The reducer makes zeros like its buckets when it is asked for that, and so passes each bucket to
the dispatch mode that is on. The mode makes nothing: no memory is allocated, and no event of a
device is awaited.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorlens.frameworks.torch.census.quiet import backward_runs
from tensorlens.heap import fallback

_LONGEST_WAIT = 0.3
"""Seconds. The reducer is locked while it reduces, and while it calls a communication hook."""


def reducer_tensors(objects: Sequence[Any]) -> Iterator[tuple[Any, str, int, Any]]:
    """Give ``(module, name in its reducer, index or -1, tensor)`` of each wrapper among these.

    Nothing is given of a reducer that stays locked: in a communication hook, or while another
    thread waits for the gradients of other processes. Of a wrapper with sparse gradients, buckets
    are given up to the first that has not been made yet.
    """
    for module in _wrappers(objects):
        reducer = _reducer_of(module)
        if reducer is None:
            continue
        buckets, used = _read(reducer)
        for index, bucket in enumerate(buckets):
            yield module, "buckets", index, bucket
        if used is not None:
            yield module, "local_used_map", -1, used


def _wrappers(objects: Sequence[Any]) -> list[Any]:
    wrapper = torch.nn.parallel.DistributedDataParallel
    # there may be all objects of the heap; the hash of a type may be code of its metaclass
    kinds = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in kinds.items() if issubclass(kind, wrapper)}
    return [each for each in objects if id(type(each)) in wanted] if wanted else []


def _reducer_of(module: Any) -> Any:
    content = fallback.dict_of(module)
    reducer = dict.get(content, "reducer") if issubclass(type(content), dict) else None
    # an estimate has one of its own; a torch may be built without any
    kind = getattr(getattr(torch._C, "_distributed_c10d", None), "Reducer", None)
    return reducer if kind is not None and type(reducer) is kind else None


class _Sight(TorchDispatchMode):  # type: ignore[misc]
    """Notes what zeros are to be made like, and gives it back in their place."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.ops.aten.zeros_like.default:
            return func(*args, **(kwargs or {}))
        self.seen.append(args[0])
        return args[0]


def _read(reducer: Any) -> tuple[list[Any], Any]:
    """Return the buckets, and the map of used parameters or None."""
    sight = _Sight()

    def read() -> None:
        with sight:
            reducer._get_zeros_like_grad_buckets()

    used = None
    # the map is given under the same lock, and with the GIL, which a communication hook waits for
    if _call_elsewhere(read) and not backward_runs():
        with contextlib.suppress(Exception):
            used = reducer._get_local_used_map()
    # without find_unused_parameters there is none
    return sight.seen[:], used if issubclass(type(used), torch.Tensor) else None


def _call_elsewhere(function: Callable[[], None]) -> bool:
    """Call a function on a thread of its own, whose modes are none; tell whether it returned."""
    done = threading.Event()

    def call() -> None:
        with contextlib.suppress(BaseException):
            function()
        done.set()

    # at the interpreter's exit no thread begins
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(call, ())
        return done.wait(_LONGEST_WAIT)
    return False
