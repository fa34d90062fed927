"""Several devices: copies between them, for ``torch.nn.DataParallel`` and its like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def install() -> None:
    """Give torch the copies it asks C++ for, and keep devices apart in what fake tensors cache."""
    for name, function in (
        ("_broadcast", _broadcast),
        ("_broadcast_coalesced", _broadcast_coalesced),
        ("_scatter", _scatter),
        ("_gather", _gather),
    ):
        setattr(torch._C, name, function)
    dispatch = FakeTensorMode.dispatch

    def dispatch_by_index(
        mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # results are cached by their arguments, and "cuda" means another device each time
        device = None if kwargs is None else kwargs.get("device")
        if device is not None and device.type == "cuda" and device.index is None:
            kwargs = {**kwargs, "device": torch.device("cuda", torch.cuda.current_device())}
        return dispatch(mode, func, types, args, kwargs)

    FakeTensorMode.dispatch = dispatch_by_index


def _cuda(index: int) -> torch.device:
    return torch.device("cuda", index) if index >= 0 else torch.device("cpu")


def _broadcast(tensor: Any, devices: Sequence[int]) -> list[Any]:
    return [tensor.to(_cuda(device)) for device in devices]


def _broadcast_coalesced(
    tensors: Sequence[Any], devices: Sequence[int], buffer_size: int
) -> list[list[Any]]:
    return [[tensor.to(_cuda(device)) for tensor in tensors] for device in devices]


def _scatter(
    tensor: Any, devices: Sequence[int], chunk_sizes: Any, dim: int, streams: Any
) -> list[Any]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes)
    return [chunk.to(_cuda(device)) for chunk, device in zip(chunks, devices, strict=False)]


def _gather(tensors: Sequence[Any], dim: int, destination: int | None) -> Any:
    where = torch.cuda.current_device() if destination is None else destination
    return torch.cat([tensor.to(_cuda(where)) for tensor in tensors], dim)
