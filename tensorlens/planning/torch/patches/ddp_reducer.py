"""Buckets of gradients, as ``DistributedDataParallel`` holds them, on tensors without data.

torch's own are in C++ and read addresses, which these tensors do not have; what is here takes the
same memory (torch/csrc/distributed/c10d/reducer.cpp, torch 2.13). After the first step torch cuts
the buckets anew, in the order in which gradients come: they take as much, which is left out. Hooks
for their communication are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Reducer:
    """Stands for ``torch.distributed.Reducer``; the arguments are its own."""

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
                    parameter.register_post_accumulate_grad_hook(_placing(view))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # what else it is told makes no difference to memory
        return nothing


def _placing(view: Any) -> Callable[[Any], None]:
    """Return a hook that puts a parameter's gradient into its bucket."""

    def place(parameter: Any) -> None:
        parameter.grad = view

    return place


class Logger:
    """Stands for ``torch.distributed.Logger``."""

    def __init__(self, reducer: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""
