"""Scratch of CPU kernels: each is run once on zeros, and its requests are counted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.torch.cpu import allocator
from tensorlens.planning.torch.memory.kernels import HALVES, Scratch

HOST_KERNEL = "own memory of the kernel"
MAX_BYTES = 1 << 26
"""Most bytes of operands with which a kernel is run."""
MAX_PRODUCTS = 1 << 31
"""Most multiplications with which a kernel is run: about a tenth of a second."""

_aten = torch.ops.aten
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
_RNN_LAYER = _aten.mkldnn_rnn_layer.default
_BATCHED = {
    _aten.convolution.default: 1,
    _aten.convolution_backward.default: 2,
    _RNN_LAYER: 1,
    _aten.mkldnn_rnn_layer_backward.default: 0,
}
"""Number of the first operands that have images or time as first dimension, by operator."""
_HIDDEN_SIZE = 10
"""Place of the size of the state among the arguments of a recurrent layer."""


class CpuScratch:
    """The ``ScratchRule`` of a tracker for convolutions, recurrent layers and 16-bit products.

    oneDNN, which runs them, takes memory from torch's CPU allocator. Its size depends on the
    processor and follows no rule, but the estimate is for this one. Products in float32 take none.
    If a convolution or a recurrent layer is too large to run, its scratch is extrapolated from
    smaller batches or shorter sequences, as it is linear in them. That of larger products is
    unknown, and taken as 0.
    """

    def __init__(self, allocator: NativeAllocator) -> None:
        self._allocator = allocator
        self._measured: dict[Any, _Measured] = {}

    @classmethod
    def here(cls) -> CpuScratch | None:
        """Return an instance; None if torch's allocator is not counted."""
        counted = allocator()
        return None if counted is None else cls(counted)

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return the scratch of an operator that has run."""
        if func not in _BATCHED and not (func in _PRODUCTS and args[0].dtype in HALVES):
            return ()
        own, _ = self._measure_once(func, args, kwargs)
        return (Scratch.exactly(own, HOST_KERNEL),) if own else ()

    def rnn_workspaces(self) -> AbstractContextManager[Any]:
        """Give fake recurrent layers the workspace that real ones keep for backward.

        oneDNN decides its size, so torch's own fake kernel gives an empty one.
        """
        return mock.patch.dict(op_implementations_dict, {_RNN_LAYER: self._rnn_layer})

    def _rnn_layer(self, mode: Any, func: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        source, hx, cx = args[0], args[5], args[6]
        _, workspace = self._measure_once(func, args, kwargs)
        return (
            source.new_empty((*source.shape[:-1], args[_HIDDEN_SIZE])),
            hx.new_empty(hx.shape),
            cx.new_empty(cx.shape),
            source.new_empty(workspace, dtype=torch.uint8),
        )

    def _measure_once(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> _Measured:
        """Return the sizes for a call, measured at the first such call; zeros if unknown."""
        operands = [*map(_operand, args)]
        try:
            key = (func, tuple(operands), tuple(kwargs.items()))
            if key not in self._measured:
                self._measured[key] = self._measure(func, operands, kwargs)
            return self._measured[key]
        except Exception:
            # a kernel that fails on zeros, or an operand that cannot be hashed
            return 0, 0

    def _measure(self, func: Any, operands: list[Any], kwargs: Any) -> _Measured:
        """Run a kernel, or extrapolate from two runs with fewer images or steps."""
        batched = _BATCHED.get(func, 0)
        count = operands[0].shape[0] if batched else 1

        def reduced(to: int) -> list[Any]:
            # time comes first, even if batch_first says that the program has it second
            first = [replace(each, shape=(to, *each.shape[1:])) for each in operands[:batched]]
            return [*first, *operands[batched:]]

        fewer = count
        while fewer and not _is_small(func, reduced(fewer)):
            fewer //= 2
        if not fewer:
            return 0, 0
        most = self._run(func, reduced(fewer), kwargs)
        if fewer == count:
            return most
        half = fewer // 2
        less = self._run(func, reduced(half), kwargs) if half else (0, 0)
        own, last = (
            one + max(0, one - other) * (count - fewer) // (fewer - half)
            for one, other in zip(most, less, strict=True)
        )
        return own, last

    def _run(self, func: Any, operands: Sequence[Any], kwargs: Any) -> _Measured:
        """Run a kernel on zeros."""
        read = self._allocator.read
        without_autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
        with _disable_current_modes(), torch._C._ExcludeDispatchKeyGuard(without_autocast):
            zeros = [each.zeros() if isinstance(each, _Operand) else each for each in operands]
            before, *_ = read()
            result = func(*zeros, **kwargs)
            _, peak, _ = read()
            made = result if isinstance(result, (list, tuple)) else (result,)
            storages = [each.untyped_storage() for each in made if each is not None]
            sizes: dict[int, int] = {each._cdata: each.nbytes() for each in storages}
        last = 0 if made[-1] is None else int(made[-1].nbytes)
        return max(0, peak - before - sum(sizes.values())), last


_Measured = tuple[int, int]
"""Bytes of a kernel's scratch, and of its last result, which is an LSTM's workspace."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def zeros(self) -> Any:
        # pages that are never written take no memory
        reach = sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)
        )
        flat = torch.zeros(reach + 1 if self.numel else 0, dtype=self.dtype, device="cpu")
        return flat.as_strided(self.shape, self.strides)


def _operand(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Operand(tuple(value.shape), tuple(value.stride()), value.dtype)
    return tuple(value) if isinstance(value, list) else value


def _is_small(func: Any, operands: Sequence[Any]) -> bool:
    """Tell whether it takes little time and memory to run an operator."""
    tensors = [each for each in operands if isinstance(each, _Operand)]
    if sum(each.numel * each.dtype.itemsize for each in tensors) > MAX_BYTES:
        return False
    if func in _PRODUCTS:
        one, other = tensors[-2:]
        products = one.numel * other.shape[-1]
    elif func in (_aten.convolution.default, _aten.convolution_backward.default):
        # the weights are applied at each place of the larger side
        *images, weight = tensors[: _BATCHED[func] + 1]
        places: int = max(each.numel // max(each.shape[1], 1) for each in images)
        products = places * weight.numel
    else:
        source, *weights = tensors[:3]
        rows: int = source.numel // max(source.shape[-1], 1)
        products = rows * sum(each.numel for each in weights)
        if any(isinstance(each, tuple) and each for each in operands):
            # batch sizes of packed sequences
            return False
    return products <= MAX_PRODUCTS
