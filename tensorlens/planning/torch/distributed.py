"""One rank of a distributed program, in a process group without other ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import distributed as data_parallel
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.planning.patches import intercepted, on_import, patched
from tensorlens.planning.torch.patches import NoOp, nothing
from tensorlens.planning.trace import caution

BACKEND = "fake"
"""torch's process group whose collectives return results of the right shapes at once."""


@contextlib.contextmanager
def distributed(world_size: int | None) -> Iterator[None]:
    """Let ``init_process_group`` make a group that holds this rank alone.

    It is rank 0 of ``world_size``; None: rank and size are the program's or its environment's.
    """
    if not dist.is_available():
        yield
        return
    with contextlib.ExitStack() as stack:
        if world_size is not None:
            # as torchrun sets them for the first rank of one machine
            variables = {
                **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(world_size)),
                **dict.fromkeys(("RANK", "LOCAL_RANK"), "0"),
                **{"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},
            }
            stack.enter_context(mock.patch.dict(os.environ, variables))
        _entered.append((stack, world_size))
        stack.callback(_entered.pop)
        for owner in (dist, distributed_c10d):
            stack.enter_context(intercepted(_init_process_group, (owner, "init_process_group")))
            stack.enter_context(intercepted(_new_group, (owner, "new_group")))
            for name, function in _LONE_RANK.items():
                if hasattr(owner, name):
                    stack.enter_context(patched(owner, name, function))
        for owner in (data_parallel, dist.utils):
            name = "_verify_param_shape_across_processes"
            stack.enter_context(patched(owner, name, nothing))

        def keep_generator_states(module: Any) -> None:
            # it reads the states of generators by address, which fake tensors lack
            stack.enter_context(patched(module, "synchronize_rng_states", nothing))

        stack.enter_context(on_import({"accelerate.data_loader": keep_generator_states}))
        try:
            yield
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


_entered: list[tuple[contextlib.ExitStack, int | None]] = []
"""Stack and ``world_size`` of the current :func:`distributed`, global because a module that stays
imported may have kept the function of an earlier run."""


def _init_process_group(
    init_process_group: Any,
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    *args: Any,
    **kwargs: Any,
) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    stack, size = _entered[-1]
    _patch_sharding(stack)
    own_rank = 0
    if size is None:
        size = world_size if world_size > 0 else int(os.environ.get("WORLD_SIZE", "1"))
        own_rank = rank if rank >= 0 else int(os.environ.get("RANK", "0"))
    caution(
        f"rank {own_rank} of {size} was run, and the others were taken to do the same: the "
        "estimate is of this rank; NCCL's own buffers are not torch's, and take from 50 MiB "
        "to 1 GiB of the device besides, by the number of ranks and links"
    )
    init_process_group(BACKEND, store=FakeStore(), rank=own_rank, world_size=size)


def _new_group(new_group: Any, ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
    kwargs = {name: kwargs[name] for name in ("use_local_synchronization",) if name in kwargs}
    return new_group(ranks, backend=BACKEND, **kwargs)


def _skip_hook(*args: Any) -> None:
    caution(
        "a communication hook of DistributedDataParallel was not run: what it compresses or "
        "copies is not in the estimate"
    )


def _patch_sharding(stack: contextlib.ExitStack) -> None:
    """Let sharded tensors work, and hide the tensors with which torch infers shapes.

    To infer a result's shape, a sharded tensor runs the operator on fake tensors of the whole size
    (torch/distributed/tensor/_sharding_prop.py, torch 2.13), which take no memory on a device.
    """
    # slow to import
    from torch.distributed.fsdp import _common_utils, _flat_param, _runtime_utils
    from torch.distributed.tensor import _dispatch
    from torch.distributed.tensor._sharding_prop import ShardingPropagator

    enter = stack.enter_context
    enter(intercepted(_without_modes, (ShardingPropagator, "_propagate_tensor_meta_non_cached")))
    if hasattr(_dispatch, "run_dtensor_rng_op"):
        enter(patched(_dispatch, "run_dtensor_rng_op", _run_random))
    for module in (_common_utils, _flat_param, _runtime_utils):
        for name, function in _FSDP1_REPLACEMENTS.items():
            if hasattr(module, name):
                enter(patched(module, name, function))


def _without_modes(function: Any, *args: Any, **kwargs: Any) -> Any:
    with _disable_current_modes():
        return function(*args, **kwargs)


def _run_random(start: Any, end: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _same_storage(one: Any, other: Any) -> bool:
    # all addresses are the same
    one, other = (getattr(each, "_local_tensor", each) for each in (one, other))
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


_FSDP1_REPLACEMENTS = {"_no_dispatch_record_stream": nothing, "_same_storage": _same_storage}


def _all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: Any = None, *args: Any, **kwargs: Any) -> None:
    _all_gather_object(object_gather_list or [], obj)


def _scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    objects = scatter_object_input_list
    if objects:
        scatter_object_output_list[0] = objects[dist.get_rank() % len(objects)]


class Reducer(NoOp):
    """Stand-in for ``torch.distributed.Reducer``, with the same arguments and the same memory.

    torch's is in C++ and reads addresses, which tensors without data lack
    (torch/csrc/distributed/c10d/reducer.cpp, torch 2.13). After the first step torch rebuilds the
    buckets in the order of the gradients, with the same size: that is left out. Communication hooks
    are not run. Its other arguments and methods have no effect on memory.
    """

    def __init__(
        self,
        params: Sequence[Any],
        bucket_indices: Sequence[Sequence[int]],
        per_bucket_size_limits: Sequence[int],
        process_group: Any,
        expect_sparse_gradients: Sequence[bool] = (),
        bucket_bytes_cap: int = 25 << 20,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = False,
        *others: Any,
        **options: Any,
    ) -> None:
        caution(
            "DistributedDataParallel's buckets were laid out as torch does it in C++, which cannot "
            "hold tensors without data: each is a second copy of its gradients, or the gradients "
            "themselves with gradient_as_bucket_view=True"
        )
        self._buffers: list[Any] = []
        for indices in bucket_indices:
            parameters = [params[each] for each in indices]
            first, total = parameters[0], sum(each.numel() for each in parameters)
            buffer = torch.empty(total, dtype=first.dtype, device=first.device)
            self._buffers.append(buffer)
            offset = 0
            for parameter in parameters:
                view = buffer.as_strided(parameter.size(), parameter.stride(), offset)
                offset += parameter.numel()
                if gradient_as_bucket_view:
                    use_view = partial(_set_gradient, view=view)
                    parameter.register_post_accumulate_grad_hook(use_view)


def _set_gradient(parameter: Any, view: Any) -> None:
    """Make the view of a bucket the parameter's gradient."""
    parameter.grad = view


_LONE_RANK: dict[str, Any] = {
    "is_nccl_available": lambda: True,
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": nothing,
    "scatter_object_list": _scatter_object_list,
    "monitored_barrier": nothing,
    "Reducer": Reducer,
    "Logger": NoOp,
    "_register_comm_hook": _skip_hook,
    "_register_builtin_comm_hook": _skip_hook,
}
"""Replacements of functions that communicate with other ranks, by name."""
