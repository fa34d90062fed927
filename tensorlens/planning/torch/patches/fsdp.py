"""FSDP and sharded tensors on tensors without data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed.fsdp import _common_utils, _flat_param, _runtime_utils
from torch.distributed.tensor import _dispatch
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.planning.patches import patched


@contextlib.contextmanager
def sharding() -> Iterator[None]:
    """Let sharded tensors work while it is entered, and hide what torch makes to learn shapes.

    A sharded tensor learns the shape of a result by running the operator on fake tensors of the
    whole size (torch/distributed/tensor/_sharding_prop.py, torch 2.13): no memory on any device.
    """
    learn = ShardingPropagator._propagate_tensor_meta_non_cached

    def learn_aside(propagator: Any, op_schema: Any) -> Any:
        with _disable_current_modes():
            return learn(propagator, op_schema)

    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(patched(ShardingPropagator, "_propagate_tensor_meta_non_cached", learn_aside))
        if hasattr(_dispatch, "run_dtensor_rng_op"):
            enter(patched(_dispatch, "run_dtensor_rng_op", _run_random))
        for module in (_common_utils, _flat_param, _runtime_utils):
            for name, function in _OF_FSDP1.items():
                if hasattr(module, name):
                    enter(patched(module, name, function))
        yield


def _run_random(start: Any, end: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


def _same_storage(one: Any, other: Any) -> bool:
    # by address they would all be the same
    one, other = (getattr(each, "_local_tensor", each) for each in (one, other))
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


def _record_stream(tensor: Any, stream: Any) -> None:
    return None


_OF_FSDP1 = {"_no_dispatch_record_stream": _record_stream, "_same_storage": _same_storage}
