"""One rank of a program of many, with a process group that has nobody else in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as data_parallel

from tensorlens.errors import UsageError
from tensorlens.planning.patches import on_import, patched
from tensorlens.planning.torch.patches import ddp_reducer as buckets

Tell = Callable[[str], None]

BACKEND = "fake"
"""torch's own process group whose collectives give results of the right shapes at once."""


@contextlib.contextmanager
def distributed(world_size: int | None, rank: int, caution: Tell) -> Iterator[None]:
    """Let ``init_process_group`` make a group of one present rank while it is entered.

    Args:
        world_size: how many ranks there are; None: as many as the program or its environment says.
        rank: the one that runs.
        caution: called with one line for everything that is assumed.

    Raises:
        UsageError: there is no such rank.
    """
    if world_size is not None and not 0 <= rank < world_size:
        raise UsageError(f"rank {rank} is not among {world_size} ranks: they begin at 0")
    if not dist.is_available():
        yield
        return
    with contextlib.ExitStack() as stack:
        group = _Group(world_size, rank, caution, stack)
        if world_size is not None:
            stack.enter_context(_environment(_variables(world_size, rank)))
        for name, function in group.functions().items():
            for owner in (dist, distributed_c10d):
                if hasattr(owner, name):
                    stack.enter_context(patched(owner, name, function))
        stack.enter_context(patched(data_parallel, _VERIFY, _nothing))
        stack.enter_context(patched(dist.utils, _VERIFY, _nothing))

        def without_generators(module: Any) -> None:
            # it sends the states of generators around, which are read by address
            stack.enter_context(patched(module, "synchronize_rng_states", _nothing))

        stack.enter_context(on_import({"accelerate.data_loader": without_generators}))
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


_VERIFY = "_verify_param_shape_across_processes"


class _Group:
    """Functions that a program calls to meet the other ranks."""

    def __init__(
        self, world_size: int | None, rank: int, caution: Tell, stack: contextlib.ExitStack
    ) -> None:
        self._stack = stack
        self._world_size = world_size
        self._rank = rank
        self._caution = caution
        self._init = dist.init_process_group
        self._new_group = dist.new_group
        self._reduce = dist.all_reduce

    def functions(self) -> dict[str, Any]:
        """Return what stands for the functions of ``torch.distributed``, by their names."""
        return {
            "init_process_group": self._begin,
            "new_group": self._subgroup,
            "is_nccl_available": lambda: True,
            "all_gather_object": _all_gather_object,
            "gather_object": _gather_object,
            "broadcast_object_list": _nothing,
            "scatter_object_list": _scatter_object_list,
            "all_reduce": self._all_reduce,
            "monitored_barrier": _nothing,
            "Reducer": self._reducer,
            "Logger": buckets.Logger,
            "_register_comm_hook": buckets.register_comm_hook,
            "_register_builtin_comm_hook": buckets.register_builtin_comm_hook,
        }

    def _begin(
        self,
        backend: Any = None,
        init_method: Any = None,
        timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        # torch's sharded tensors take long to import
        from tensorlens.planning.torch.patches.fsdp import sharding

        self._stack.enter_context(sharding())
        size, mine = self._world_size, self._rank
        if size is None:
            size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
            mine = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
        self._caution(
            f"rank {mine} of {size} was run, and the others were taken to do the same: the "
            "estimate is of this rank; NCCL's own buffers are not torch's, and take from 50 MiB "
            "to 1 GiB of the device besides, by the number of ranks and links"
        )
        self._init(BACKEND, store=FakeStore(), rank=mine, world_size=size)

    def _reducer(self, *args: Any, **kwargs: Any) -> buckets.Reducer:
        self._caution(
            "DistributedDataParallel's buckets were laid out as torch does it in C++, which cannot "
            "hold tensors without data: each is a second copy of its gradients, or the gradients "
            "themselves with gradient_as_bucket_view=True"
        )
        return buckets.Reducer(*args, **kwargs)

    def _all_reduce(
        self, tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        work = self._reduce(tensor, op, group, async_op)
        return _Work(work, tensor) if async_op else work

    def _subgroup(self, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs = {name: kwargs[name] for name in ("use_local_synchronization",) if name in kwargs}
        return self._new_group(ranks, backend=BACKEND, **kwargs)


class _Work:
    """A collective under way, whose future has its result; that of the fake group has none."""

    def __init__(self, work: Any, tensor: Any) -> None:
        self._work = work
        self._tensor = tensor

    def get_future(self) -> Any:
        """Return what becomes a list of the tensor that was reduced."""
        future: Any = torch.futures.Future()
        future.set_result([self._tensor])
        return future

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _variables(world_size: int, rank: int) -> dict[str, str]:
    """Return what ``torchrun`` would have put into the environment of a rank on one machine."""
    return {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29500",
    }


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _scatter_object_list(
    output: list[Any], objects: list[Any] | None = None, *args: Any, **kwargs: Any
) -> None:
    if objects:
        output[0] = objects[dist.get_rank() % len(objects)]
