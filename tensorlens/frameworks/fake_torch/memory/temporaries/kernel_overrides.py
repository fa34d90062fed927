"""Operators whose results on CUDA are others than torch's fake kernels on a CPU build give."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tensorlens.frameworks.fake_torch.memory.temporaries import in_place
from tensorlens.frameworks.fake_torch.stacks import ProgramStacks
from tensorlens.frameworks.fake_torch.tracker import Tracker
from tensorlens.frameworks.fake_torch.values.data_dependent import answering
from tensorlens.records.traces import Trace

_aten = torch.ops.aten
_NONE = 0
_KERNELS = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Operators with a kernel on CUDA that are a formula of several wherever there is none
(``aten/src/ATen/native/native_functions.yaml``: CompositeImplicitAutograd beside CUDA)."""
_libraries: list[Any] = []


def install() -> None:
    """Let fake tensors have, from now on, the memory that real ones on a card would have."""
    if _libraries:
        return
    accumulation = in_place.Accumulation()
    handlers = {
        **in_place.handlers(accumulation),
        _aten.binary_cross_entropy.default: _cross_entropy_of_chances,
        _aten.clone.default: _clone_of_sparse,
    }
    _dispatch_first_to({id(func): handler for func, handler in handlers.items()})
    library = torch.library.Library("aten", "IMPL")
    for name in _KERNELS:
        if hasattr(_aten, name):
            library.impl(name, _no_kernel, "CUDA")
    _libraries.append(library)
    for answers in (contextlib.nullcontext(), answering(_ignore)):
        with answers:
            _accumulate_once()  # torch loads more of itself the first time
            accumulation.calibrate(_accumulate_once)


def _accumulate_once() -> None:
    """Add the gradients of ``sin`` and ``cos``, each a new tensor, as a program's run would."""
    trace = Trace()
    stacks = ProgramStacks(trace.log.stacks)
    with FakeTensorMode(allow_non_fake_inputs=True), stacks, Tracker(trace, stacks):
        both = torch.ones(2, requires_grad=True).exp()
        (both.sin() * both.cos()).sum().backward()


def _ignore(text: str) -> None:
    pass


def _no_kernel(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("a tensor on a card that is not there has no data")


def _dispatch_first_to(handlers: Mapping[int, in_place.Handler]) -> None:
    original = FakeTensorMode.dispatch

    def dispatch(
        mode: Any,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        handler = handlers.get(id(func))
        if handler is not None:
            result = handler(args, kwargs)
            if result is not NotImplemented:
                return result
        return original(mode, func, types, args, kwargs)

    FakeTensorMode.dispatch = dispatch


def _cross_entropy_of_chances(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a loss that keeps the memory of each element's.

    ``aten/src/ATen/native/cuda/Loss.cu``, binary_cross_entropy_out_cuda: the tensor of all losses
    is made a scalar by ``resize_as_``, which gives no memory back.
    """
    reduction = args[3] if len(args) > 3 else kwargs.get("reduction", 1)
    if reduction == _NONE or args[0].fake_device.type != "cuda":
        return NotImplemented
    return torch.empty_like(args[0]).resize_(())


def _clone_of_sparse(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a copy with as many values: the meta kernel's has none."""
    tensor = args[0]
    if tensor.layout is not torch.sparse_coo:
        return NotImplemented
    indices, values = tensor._indices().clone(), tensor._values().contiguous().clone()
    copy = torch.sparse_coo_tensor(indices, values, tensor.shape, check_invariants=False)
    return copy._coalesced_(tensor.is_coalesced())
