"""Scratch memory of CPU kernels: each is run once, on zeros, and counted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.frameworks.host.allocator import NativeAllocator
from tensorlens.frameworks.torch.cpu import CpuCounter, cpu_counter
from tensorlens.planning.torch.tracker import Scratch

HOST_KERNEL = "own memory of the kernel"
MOST_BYTES = 1 << 26
"""Operands beyond which nothing is run."""
MOST_PRODUCTS = 1 << 31
"""Multiplications beyond which nothing is run: a tenth of a second or so."""

_aten = torch.ops.aten
_CONVOLUTIONS = (_aten.convolution.default, _aten.convolution_backward.default)
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
_LOW = (torch.bfloat16, torch.float16)
_RNN_LAYER = _aten.mkldnn_rnn_layer.default
_RNN_LAYERS = (_RNN_LAYER, _aten.mkldnn_rnn_layer_backward.default)
_HIDDEN_SIZE = 10
"""Which argument of a recurrent layer says how many numbers its state has."""


class HostKernels:
    """Gives what some kernels take for themselves, as a ``HiddenOf`` of a tracker.

    They are convolutions, recurrent layers and products of low precision. oneDNN, which runs them,
    asks torch's CPU allocator for room by what the processor can do; no rule tells how much, but
    this processor is the one it is estimated for. Products in float32 take none. Of a convolution
    or a recurrent layer that is too large to be run, smaller batches or shorter sequences tell it,
    with which it grows as a line does. Of a product that is too large nothing is known.

    Args:
        allocator: counts what the CPU's allocator hands out.
    """

    def __init__(self, allocator: NativeAllocator) -> None:
        self._allocator = allocator
        self._known: dict[Any, int] = {}

    @classmethod
    def here(cls) -> HostKernels | None:
        """Return one, or None where nothing counts exactly."""
        counter = cpu_counter()
        return cls(counter.allocator) if isinstance(counter, CpuCounter) else None

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return what an operator that has run took besides ``result``."""
        if func in _CONVOLUTIONS:
            taken = self._of_convolution
        elif func in _RNN_LAYERS:
            taken = self._of_rnn_layer
        elif func in _PRODUCTS and args[0].dtype in _LOW:
            taken = self._of_product
        else:
            return ()
        own = self._once(taken, func, args, kwargs)
        return (Scratch.exactly(own, HOST_KERNEL),) if own else ()

    @contextlib.contextmanager
    def rnn_workspaces(self) -> Iterator[None]:
        """Let fake recurrent layers keep as much for backward as real ones do.

        torch's own fake layers keep nothing: its size is oneDNN's.
        """
        op_implementations_dict[_RNN_LAYER] = self._rnn_layer
        try:
            yield
        finally:
            del op_implementations_dict[_RNN_LAYER]

    def _rnn_layer(self, mode: Any, func: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        source, hx, cx = args[0], args[5], args[6]
        workspace = self._once(self._workspace, func, args, kwargs)
        return (
            source.new_empty((*source.shape[:-1], args[_HIDDEN_SIZE])),
            hx.new_empty(hx.shape),
            cx.new_empty(cx.shape),
            source.new_empty(workspace, dtype=torch.uint8),
        )

    def _once(
        self, taken: Callable[..., int], func: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> int:
        """Return the bytes that a kernel takes, found out at its first call; 0 if not known."""
        operands = [*map(_operand, args)]
        try:
            key = (taken.__name__, func, tuple(operands), tuple(kwargs.items()))
            if key not in self._known:
                self._known[key] = taken(func, operands, kwargs)
            return self._known[key]
        except Exception:
            # a kernel that does not take zeros, or operands that cannot be told apart
            return 0

    def _of_product(self, func: Any, operands: list[Any], kwargs: Any) -> int:
        *_, one, other = (each for each in operands if isinstance(each, _Operand))
        if one.numel * other.shape[-1] > MOST_PRODUCTS or _nbytes(operands) > MOST_BYTES:
            return 0
        return self._taken(func, operands, kwargs)

    def _of_convolution(self, func: Any, operands: list[Any], kwargs: Any) -> int:
        return _extrapolated(
            operands[0].shape[0],
            lambda batch: _with_batch(func, operands, batch),
            lambda reduced: _is_small(func, reduced),
            lambda reduced: self._taken(func, reduced, kwargs),
        )

    def _of_rnn_layer(self, func: Any, operands: list[Any], kwargs: Any) -> int:
        if func is not _RNN_LAYER:
            return self._taken(func, operands, kwargs) if _is_small_rnn(operands) else 0
        return self._of_sequence(operands, lambda reduced: self._taken(func, reduced, kwargs))

    def _workspace(self, func: Any, operands: list[Any], kwargs: Any) -> int:
        return self._of_sequence(
            operands, lambda reduced: int(self._run(func, reduced, kwargs)[0][-1].nbytes)
        )

    def _of_sequence(self, operands: list[Any], taken: Callable[[list[Any]], int]) -> int:
        source = operands[0]

        def shortened(steps: int) -> list[Any]:
            # time comes first, also where batch_first says that the program has it second
            return [replace(source, shape=(steps, *source.shape[1:])), *operands[1:]]

        return _extrapolated(source.shape[0], shortened, _is_small_rnn, taken)

    def _taken(self, func: Any, operands: Sequence[Any], kwargs: Any) -> int:
        return self._run(func, operands, kwargs)[1]

    def _run(self, func: Any, operands: Sequence[Any], kwargs: Any) -> tuple[Sequence[Any], int]:
        """Return what a kernel gives for zeros, and the bytes that it takes besides."""
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
        return made, max(0, peak - before - sum(sizes.values()))


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor, without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        size: int = self.numel * self.dtype.itemsize
        return size

    def zeros(self) -> Any:
        # pages that nobody writes to are not there
        reach = sum(
            (size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True)
        )
        flat = torch.zeros(reach + 1 if self.numel else 0, dtype=self.dtype, device="cpu")
        return flat.as_strided(self.shape, self.strides)


def _operand(value: Any) -> Any:
    if isinstance(value, FakeTensor):
        return _Operand(tuple(value.shape), tuple(value.stride()), value.dtype)
    return tuple(value) if isinstance(value, list) else value


def _extrapolated(
    count: int,
    reduced: Callable[[int], list[Any]],
    is_small: Callable[[list[Any]], bool],
    taken: Callable[[list[Any]], int],
) -> int:
    """Return what is taken for a count of images or steps, by two smaller ones if it is large."""
    fewer = next((each for each in _halves(count) if is_small(reduced(each))), 0)
    if not fewer:
        return 0
    most = taken(reduced(fewer))
    if fewer == count:
        return most
    half = fewer // 2
    less = taken(reduced(half)) if half else 0
    return most + max(0, most - less) * (count - fewer) // (fewer - half)


def _halves(count: int) -> Iterator[int]:
    while count:
        yield count
        count //= 2


def _is_small_rnn(operands: Sequence[Any]) -> bool:
    if any(isinstance(each, tuple) and each for each in operands):
        # sizes of batches, of packed sequences
        return False
    source, *weights = operands[:3]
    rows: int = source.numel // max(source.shape[-1], 1)
    products = rows * sum(each.numel for each in weights)
    return products <= MOST_PRODUCTS and _nbytes(operands) <= MOST_BYTES


def _with_batch(func: Any, operands: Sequence[Any], batch: int) -> list[Any]:
    """Return the operands of a convolution with so many images."""
    images = 1 if func is _aten.convolution.default else 2
    reduced = [
        _Operand((batch, *each.shape[1:]), each.strides, each.dtype) for each in operands[:images]
    ]
    return [*reduced, *operands[images:]]


def _is_small(func: Any, operands: Sequence[Any]) -> bool:
    # the one of both sides that has the weights at each of its places; one image is on the other
    images = operands[0], operands[1] if func is not _aten.convolution.default else operands[0]
    weight = operands[1] if func is _aten.convolution.default else operands[2]
    places: int = max(each.numel // max(each.shape[1], 1) for each in images)
    return places * weight.numel <= MOST_PRODUCTS and _nbytes(operands) <= MOST_BYTES


def _nbytes(operands: Sequence[Any]) -> int:
    return sum(each.nbytes for each in operands if isinstance(each, _Operand))
