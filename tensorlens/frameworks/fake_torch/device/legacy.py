"""``torch.cuda.FloatTensor`` and its like, by which older programs make tensors on the device."""

from __future__ import annotations

from typing import Any

import torch

_TYPES = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "LongTensor": torch.int64,
    "IntTensor": torch.int32,
    "ShortTensor": torch.int16,
    "CharTensor": torch.int8,
    "ByteTensor": torch.uint8,
    "BoolTensor": torch.bool,
}


class _LegacyType(type):
    """The type of such a class: a call makes a plain tensor."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> Any:
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args[0] if args and isinstance(args[0], torch.Size) else args
        return torch.empty(size, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )


def install() -> None:
    """Put the classes into ``torch.cuda``."""
    by_name: dict[str, Any] = {}
    for name, dtype in _TYPES.items():
        made = _LegacyType(name, (), {"dtype": dtype, "__module__": "torch.cuda"})
        setattr(torch.cuda, name, made)
        by_name[f"torch.cuda.{name}"] = made
    original, original_default = torch.Tensor.type, torch.set_default_tensor_type

    def convert(tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        legacy = by_name.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if isinstance(legacy, _LegacyType):
            return tensor.to("cuda", legacy.dtype)
        return original(tensor, *(() if dtype is None else (dtype,)), *args, **kwargs)

    def set_default(kind: Any) -> None:
        legacy = by_name.get(kind, kind) if isinstance(kind, str) else kind
        if isinstance(legacy, _LegacyType):
            torch.set_default_device("cuda")
            torch.set_default_dtype(legacy.dtype)
        else:
            original_default(kind)

    torch.Tensor.type = convert
    torch.set_default_tensor_type = set_default
