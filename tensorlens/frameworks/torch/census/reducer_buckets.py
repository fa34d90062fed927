"""Buckets of DistributedDataParallel's reducer: C++ alone holds them, a dispatch mode sees them.

The mode lets no operator run: no memory is allocated, and no event of a device is awaited.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorlens.heap import attributes

_MAX_WAIT = 0.3
"""In seconds; the reducer is locked while it reduces and while it calls a communication hook."""


def reducer_buckets(objects: Sequence[Any]) -> Iterator[tuple[Any, int, Any]]:
    """Yield ``(module, index, bucket)`` for each DistributedDataParallel among objects.

    A reducer that stays locked has none: in a communication hook, or while another thread waits
    for the gradients of other processes. With sparse gradients the buckets end before the first
    that is not allocated yet.
    """
    for module in _wrappers(objects):
        content = attributes.dict_of(module)
        reducer = dict.get(content, "reducer") if issubclass(type(content), dict) else None
        # an estimate has a reducer of its own; some builds of torch have none
        kind = getattr(getattr(torch._C, "_distributed_c10d", None), "Reducer", None)
        if kind is not None and type(reducer) is kind:
            for index, bucket in enumerate(_read(reducer)):
                yield module, index, bucket


def _wrappers(objects: Sequence[Any]) -> list[Any]:
    wrapper = torch.nn.parallel.DistributedDataParallel
    # these may be all objects of the heap; by id(), as the hash of a type may run code of its
    # metaclass, and so may issubclass()
    kinds = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in kinds.items() if attributes.is_subtype(kind, wrapper)}
    return [each for each in objects if id(type(each)) in wanted] if wanted else []


class _ZerosProbe(TorchDispatchMode):  # type: ignore[misc]
    """Collects the arguments of ``zeros_like()``, and returns them in place of the zeros."""

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


def _read(reducer: Any) -> list[Any]:
    """Return the buckets, read by another thread, which waits if the reducer is locked."""
    probe, done = _ZerosProbe(), threading.Event()

    def read() -> None:
        with contextlib.suppress(BaseException), probe:
            reducer._get_zeros_like_grad_buckets()
        done.set()

    # no thread can start while the interpreter exits
    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(read, ())
        done.wait(_MAX_WAIT)
    return probe.seen[:]
