"""Buckets of gradients, as ``DistributedDataParallel`` holds them, on tensors without data.

torch's own are in C++ and read addresses, which these tensors do not have; what is here asks for
the same memory at the same moments (torch/csrc/distributed/c10d/reducer.cpp, torch 2.13). Hooks for
their communication are not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist


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
        param_to_name_mapping: Any = None,
        first_bucket_bytes_cap: int = 1 << 20,
        *others: Any,
    ) -> None:
        self._params = list(params)
        self._caps = [first_bucket_bytes_cap, bucket_bytes_cap]
        self._rebuilds = not find_unused_parameters
        self._as_view = gradient_as_bucket_view
        self._expecting = False
        self._order: list[int] = []
        self.buffers: list[Any] = []
        """One for each bucket."""
        self._make(bucket_indices)
        for index, each in enumerate(self._params):
            each.register_post_accumulate_grad_hook(self._accumulated(index))

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """Wait for the gradients of this backward pass."""
        self._expecting = True
        self._order.clear()

    def _accumulated(self, index: int) -> Callable[[Any], None]:
        def hook(parameter: Any) -> None:
            if not self._expecting:
                return
            if not self._order:
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._order.append(index)
            if self._as_view and index in self._views:
                parameter.grad = self._views[index]

        return hook

    def _finish(self) -> None:
        self._expecting = False

    def _rebuild_buckets(self) -> bool:
        """Sort the buckets anew by the order in which gradients came, once."""
        if not self._rebuilds or len(self._order) < len(self._params):
            return False
        self._rebuilds = False
        order = list(self._order)
        tensors = [self._params[each] for each in order]
        dense = [False] * len(order)
        indices, _ = dist._compute_bucket_assignment_by_size(tensors, self._caps, dense, order)
        self._make(indices)
        return True

    def _make(self, bucket_indices: Sequence[Sequence[int]]) -> None:
        self.buffers.clear()
        self._views: dict[int, Any] = {}
        for indices in bucket_indices:
            parameters = [self._params[each] for each in indices]
            first, total = parameters[0], sum(each.numel() for each in parameters)
            buffer = torch.empty(total, dtype=first.dtype, device=first.device)
            self.buffers.append(buffer)
            offset = 0
            for index, parameter in zip(indices, parameters, strict=True):
                view = buffer.as_strided(parameter.size(), parameter.stride(), offset)
                offset += parameter.numel()
                self._views[index] = view
                if self._as_view and parameter.grad is not None:
                    parameter.grad = view

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # what else it is told makes no difference to memory
        return nothing


class Logger:
    """Stands for ``torch.distributed.Logger``."""

    def __init__(self, reducer: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return nothing


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""
