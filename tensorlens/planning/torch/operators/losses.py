"""Losses whose fake kernels take other memory than the real ones: CTC, reduced losses, one-hot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional

from tensorlens.planning.patches import intercepted
from tensorlens.planning.torch.operators.constants import constant_of
from tensorlens.planning.torch.operators.data_sizes import new_tensor, warn_of_size

_aten = torch.ops.aten
_REDUCED = frozenset(
    (
        _aten.mse_loss.default,
        _aten.smooth_l1_loss.default,
        _aten.soft_margin_loss.default,
        _aten.binary_cross_entropy.default,
    )
)


def keep_elements(func: Any, args: Sequence[Any], result: Any) -> None:
    """Resize the storage of a reduced loss to that of all elements, which it keeps.

    Such kernels write all elements into the result before they reduce it in place
    (``aten/src/ATen/native/BinaryOps.cpp`` and ``Loss.cpp``, for the CPU and CUDA).
    """
    if func in _REDUCED and not result.dim():
        elements = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
        result.untyped_storage().resize_(elements * result.element_size())


@contextlib.contextmanager
def loss_patches() -> Iterator[None]:
    """Replace functions that run other code on tensors without data, while entered."""
    with (
        intercepted(_one_hot, (functional, "one_hot"), (torch._C._nn, "one_hot")),
        intercepted(_ctc_loss_function, (functional, "ctc_loss")),
    ):
        yield


def _one_hot(original: Any, tensor: Any, num_classes: int = -1) -> Any:
    """Scatter into zeros, as torch does with data.

    Without data it compares with an ``arange`` (aten/src/ATen/native/Onehot.cpp, torch 2.13).
    """
    if not isinstance(tensor, FakeTensor) or tensor.numel() == 0:
        return original(tensor, num_classes)
    if num_classes == -1:
        num_classes = int(tensor.max().item()) + 1
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=torch.int64, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def _ctc_loss_function(
    original: Any, log_probs: Any, targets: Any, *args: Any, **kwargs: Any
) -> Any:
    """Accept lengths on the CPU or as numbers, as on a card.

    Without data torch refuses them (aten/src/ATen/native/LossCTC.cpp, torch 2.13).
    """

    def on_device(given: Any) -> Any:
        if isinstance(log_probs, FakeTensor) and isinstance(given, list | tuple):
            return torch.tensor(given, device=log_probs.device)
        return given.to(log_probs.device) if isinstance(given, torch.Tensor) else given

    lengths = {name: on_device(each) for name, each in kwargs.items()}
    return original(log_probs, targets, *map(on_device, args), **lengths)


def _ctc_loss(
    mode: Any,
    func: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *_: Any,
) -> Any:
    # aten/src/ATen/native/cuda/LossCTC.cu: log_alpha is (batch, time, 2 * longest target + 1)
    steps, batch = log_probs.shape[:2]
    lengths = target_lengths
    if isinstance(lengths, torch.Tensor):
        constant = constant_of(lengths)
        lengths = None if constant is None else constant.tensor.tolist()
    if lengths is None:
        warn_of_size("ctc_loss", targets.shape[-1])
        lengths = [targets.shape[-1]]
    longest = max(lengths, default=0)
    return (
        new_tensor(mode, log_probs, (batch,)),
        new_tensor(mode, log_probs, (batch, steps, 2 * longest + 1)),
    )


ANSWERS: dict[Any, Callable[..., Any]] = {
    _aten._ctc_loss.Tensor: _ctc_loss,
    _aten._ctc_loss.default: _ctc_loss,
}
