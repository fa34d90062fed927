"""Buckets of gradients, as ``DistributedDataParallel`` holds them, on tensors without data.

torch's own are in C++ and read addresses, which these tensors do not have; what is here asks for
the same memory at the same moments (torch/csrc/distributed/c10d/reducer.cpp, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import distributed as dist


class Bucket:
    """The gradients of some parameters in one piece; hooks are given it as a ``GradBucket``."""

    def __init__(self, index: int, number: int, indices: Sequence[int], params: Any) -> None:
        self.indices = list(indices)
        self.waiting = len(self.indices)
        self.future: Any = None
        self._index, self._number = index, number
        self._parameters = [params[each] for each in self.indices]
        first = self._parameters[0]
        sizes = [each.numel() for each in self._parameters]
        self._buffer = torch.empty(sum(sizes), dtype=first.dtype, device=first.device)
        self.views = [*self._views(sizes)]

    def _views(self, sizes: Sequence[int]) -> Iterator[Any]:
        offset = 0
        for parameter, size in zip(self._parameters, sizes, strict=True):
            yield self._buffer.as_strided(parameter.size(), parameter.stride(), offset)
            offset += size

    def index(self) -> int:
        """Return the place of this bucket among all."""
        return self._index

    def buffer(self) -> Any:
        """Return the gradients in one piece."""
        return self._buffer

    def set_buffer(self, tensor: Any) -> None:
        """Put other gradients in their place."""
        self._buffer = tensor

    def gradients(self) -> list[Any]:
        """Return the gradients."""
        return self.views

    def parameters(self) -> list[Any]:
        """Return the parameters."""
        return self._parameters

    def is_last(self) -> bool:
        """Whether no bucket comes after this one."""
        return self._index == self._number - 1


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
        self._sparse = list(expect_sparse_gradients) or [False] * len(self._params)
        self._caps = [first_bucket_bytes_cap, bucket_bytes_cap]
        self._find_unused = find_unused_parameters
        self._as_view = gradient_as_bucket_view
        self._static = False
        self._expecting = self._rebuilt = False
        self._steps = 0
        self._unused: set[int] = set()
        self._ready: list[int] = []
        self._hook: Callable[[Any], Any] | None = None
        self._buckets: list[Bucket] = []
        self._used_maps: tuple[Any, Any] | None = None
        self._make(bucket_indices)
        if find_unused_parameters:
            self._make_used_maps()
        self._handles = [
            each.register_post_accumulate_grad_hook(self._accumulated(index))
            for index, each in enumerate(self._params)
        ]

    def prepare_for_forward(self) -> None:
        """Begin an iteration."""
        self._steps += 1

    def prepare_for_backward(self, outputs: Sequence[Any]) -> None:
        """Wait for the gradients of what leads to the outputs; of all for no outputs."""
        self._expecting = True
        self._ready.clear()
        for bucket in self._buckets:
            bucket.waiting, bucket.future = len(bucket.indices), None
        self._unused = set()
        if self._find_unused and not self._static and outputs:
            used = _leaves(outputs)
            self._unused = {i for i, each in enumerate(self._params) if id(each) not in used}

    def _accumulated(self, index: int) -> Callable[[Any], None]:
        def hook(parameter: Any) -> None:
            if not self._expecting:
                return
            if self._static and self._steps == 1:
                return
            if not self._ready:
                for each in sorted(self._unused):
                    self._mark(each)
            if index not in self._unused and index not in self._ready:
                self._mark(index)

        return hook

    def _mark(self, index: int) -> None:
        self._ready.append(index)
        bucket, place = self._places[index]
        parameter = self._params[index]
        if bucket is not None:
            view, gradient = bucket.views[place], parameter.grad
            with torch.no_grad():
                if gradient is None:
                    view.zero_()
                elif gradient.untyped_storage()._cdata != view.untyped_storage()._cdata:
                    view.copy_(gradient)
                    if self._as_view:
                        parameter.grad = view
            bucket.waiting -= 1
            if not bucket.waiting and self._hook is not None:
                bucket.future = self._hook(bucket)
        if len(self._ready) == len(self._params):
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        self._expecting = False
        for bucket in self._buckets:
            if bucket.future is None:
                continue
            result = bucket.future.wait()
            result = result[0] if isinstance(result, (list, tuple)) else result
            bucket.future = None
            if isinstance(result, torch.Tensor) and not self._as_view:
                bucket.set_buffer(bucket.buffer())

    def _rebuild_buckets(self) -> bool:
        """Sort the buckets anew by the order in which gradients came, once."""
        possible = self._static or not self._find_unused
        if self._rebuilt or not possible or len(self._ready) < len(self._params):
            return False
        self._rebuilt = True
        order = list(self._ready)
        tensors = [self._params[each] for each in order]
        sparse = [self._sparse[each] for each in order]
        indices, _ = dist._compute_bucket_assignment_by_size(tensors, self._caps, sparse, order)
        self._make(indices)
        return True

    def _make(self, bucket_indices: Sequence[Sequence[int]]) -> None:
        self._buckets.clear()
        self._places: dict[int, tuple[Bucket | None, int]] = {}
        dense = [each for each in bucket_indices if not self._sparse[each[0]]]
        for each in bucket_indices:
            self._places.update((index, (None, 0)) for index in each)
        for number, indices in enumerate(dense):
            bucket = Bucket(number, len(dense), indices, self._params)
            self._buckets.append(bucket)
            for place, index in enumerate(indices):
                self._places[index] = bucket, place
                parameter = self._params[index]
                if self._as_view and parameter.grad is not None:
                    with torch.no_grad():
                        bucket.views[place].copy_(parameter.grad)
                    parameter.grad = bucket.views[place]

    def _make_used_maps(self) -> None:
        device = self._params[0].device
        count = len(self._params)
        self._used_maps = (
            torch.zeros(count, dtype=torch.int32, device="cpu"),
            torch.empty(count, dtype=torch.int32, device=device),
        )

    def _set_static_graph(self) -> None:
        self._static = True
        if self._used_maps is None:
            self._make_used_maps()

    def _delay_all_reduce(self) -> None:
        for index in range(len(self._params)):
            self._mark(index)

    def _push_all_rebuilt_params(self) -> None:
        return None

    def _get_local_used_map(self) -> Any:
        return None if self._used_maps is None else self._used_maps[1]

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        # what else it is told makes no difference to memory
        return _nothing


class Logger:
    """Stands for ``torch.distributed.Logger``."""

    def __init__(self, reducer: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def register_comm_hook(reducer: Reducer, state: Any, hook: Callable[[Any, Any], Any]) -> None:
    """Let a program's hook have each bucket that is full."""
    reducer._hook = lambda bucket: hook(state, bucket)


def register_builtin_comm_hook(reducer: Reducer, kind: Any) -> None:
    """Let a hook of torch's own have each bucket that is full."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    if "FP16" in str(kind):
        reducer._hook = lambda bucket: default_hooks.fp16_compress_hook(None, bucket)


def _leaves(outputs: Sequence[Any]) -> set[int]:
    """Return the addresses of the leaves that some outputs come from."""
    waiting = [each.grad_fn for each in outputs if each.grad_fn is not None]
    found = {id(each) for each in outputs}
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None
