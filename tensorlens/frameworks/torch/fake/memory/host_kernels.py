"""What kernels of the CPU take while they run: each is run once, on zeros, and counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from tensorlens.frameworks.native.allocator import NativeAllocator
from tensorlens.frameworks.torch.cpu import CpuCounter, cpu_counter
from tensorlens.frameworks.torch.fake.tracker import Hidden

HOST_KERNEL = "own memory of the kernel"
MOST_BYTES = 1 << 26
"""Operands beyond which nothing is run."""
MOST_PRODUCTS = 1 << 31
"""Multiplications beyond which nothing is run: a tenth of a second or so."""

_aten: Any = torch.ops.aten
_CONVOLUTIONS = (_aten.convolution.default, _aten.convolution_backward.default)
_PRODUCTS = (_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default)
_LOW = (torch.bfloat16, torch.float16)
_MAX_POOL = _aten.max_pool2d_with_indices.default
_POOLS_BACKWARD = (
    _aten.max_pool2d_with_indices_backward.default,
    _aten.avg_pool2d_backward.default,
)


class HostKernels:
    """Gives what convolutions and products of low precision take, as a ``HiddenOf`` of a tracker.

    oneDNN, which runs them, asks torch's CPU allocator for room by what the processor can do; no
    rule tells how much, but this processor is the one it is estimated for. Products in float32 take
    none. Of a convolution that is too large to be run, smaller batches tell it, with which it grows
    as a line does. Of a product that is too large nothing is known.

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
    ) -> Sequence[Hidden]:
        """Return what an operator that has run took besides ``result``."""
        copied = _copied_to_pool(func, args, result)
        if copied:
            return (Hidden.exactly(copied, HOST_KERNEL),)
        is_convolution = func in _CONVOLUTIONS
        if not is_convolution and (func not in _PRODUCTS or args[0].dtype not in _LOW):
            return ()
        operands = [*map(_operand, args)]
        key = (func, tuple(operands), tuple(kwargs.items()))
        try:
            own = self._known.get(key)
            if own is None:
                taken = self._of_convolution if is_convolution else self._of_product
                own = self._known[key] = taken(func, operands, kwargs)
        except Exception:
            # a kernel that does not take zeros, or operands that cannot be told apart
            return ()
        return (Hidden.exactly(own, HOST_KERNEL),) if own else ()

    def _of_product(self, func: Any, operands: list[Any], kwargs: Any) -> int:
        *_, one, other = (each for each in operands if isinstance(each, _Operand))
        if one.numel * other.shape[-1] > MOST_PRODUCTS or _nbytes(operands) > MOST_BYTES:
            return 0
        return self._taken(func, operands, kwargs)

    def _of_convolution(self, func: Any, operands: list[Any], kwargs: Any) -> int:
        batch: int = operands[0].shape[0]
        for fewer in _halves(batch):
            reduced = _with_batch(func, operands, fewer)
            if _is_small(func, reduced):
                break
        else:
            return 0
        most = self._taken(func, reduced, kwargs)
        if fewer == batch:
            return most
        half = fewer // 2
        less = self._taken(func, _with_batch(func, operands, half), kwargs) if half else 0
        return most + max(0, most - less) * (batch - fewer) // (fewer - half)

    def _taken(self, func: Any, operands: Sequence[Any], kwargs: Any) -> int:
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
        return max(0, peak - before - sum(sizes.values()))


def _copied_to_pool(func: Any, args: Sequence[Any], result: Any) -> int:
    """Return the bytes of the copies that pooling makes of what has another memory format.

    It runs in the format of what comes first, and copies the rest: in backward that is the gradient
    of its result, which may be of no format, as after ``sum()``, or of another than the images
    (``native/cpu/MaxPoolKernel.cpp``, ``native/cpu/AvgPoolKernel.cpp``).
    """
    if func is _MAX_POOL:
        tensors = [args[0]]
    elif func in _POOLS_BACKWARD:
        tensors = [args[0], result]
        if func is not _aten.avg_pool2d_backward.default:
            tensors.append(args[-1])
    else:
        return 0
    layout = suggest_memory_format(args[0])
    return sum(
        each.numel() * each.element_size()
        for each in tensors
        if not each.is_contiguous(memory_format=layout)
    )


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor, without its data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

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


def _halves(batch: int) -> Iterator[int]:
    while batch:
        yield batch
        batch //= 2


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
