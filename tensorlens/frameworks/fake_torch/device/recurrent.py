"""RNN, LSTM and GRU: what their Python side asks of addresses and of lengths."""

from __future__ import annotations

from typing import Any

import torch

from tensorlens.frameworks.fake_torch.device.kernels import slices
from tensorlens.frameworks.fake_torch.device.toolkit import CUDNN_RNN

_library = torch.library.Library("aten", "IMPL")
"""Kept: what it registers goes with it."""


def install() -> None:
    """Let recurrent modules pack their weights, and sequences of known lengths."""
    torch.nn.RNNBase.flatten_parameters = _flatten_parameters
    # both are written in terms of other operators, but look at addresses
    _library.impl("_pad_packed_sequence", _pad_packed_sequence, "AutogradCUDA")
    _library.impl("_pack_padded_sequence_backward", _pack_padded_sequence_backward, "AutogradCUDA")
    _library.impl("_cudnn_rnn", _under_autocast, "AutocastCUDA")


def _flatten_parameters(module: Any) -> None:
    """Put the weights one behind the other where cuDNN asks for it.

    torch tells by their addresses whether two weights are one; fake tensors have none, so this
    tells it by their storages.
    """
    weights = module._flat_weights
    if len(weights) != len(module._flat_weights_names):
        return
    if not all(isinstance(weight, torch.Tensor) for weight in weights):
        return
    if not all(
        weight.is_cuda
        and weight.dtype == weights[0].dtype
        and torch.backends.cudnn.is_acceptable(weight)
        for weight in weights
    ):
        return
    places = {(each.untyped_storage()._cdata, each.storage_offset()) for each in weights}
    if len(places) != len(weights):
        return
    with torch.no_grad():
        torch._cudnn_rnn_flatten_weight(
            weights,
            (4 if module.bias else 2) + (module.proj_size > 0),
            module.input_size,
            CUDNN_RNN.get_cudnn_mode(module.mode),
            module.hidden_size,
            module.proj_size,
            module.num_layers,
            module.batch_first,
            bool(module.bidirectional),
        )


def _under_autocast(
    input: Any, weight: list[Any], stride: int, weight_buf: Any, hx: Any, cx: Any, *rest: Any
) -> Any:
    """Cast what cuDNN is given, and its weights into one buffer.

    After aten/src/ATen/cudnn/AutocastRNN.cpp, which a build without CUDA does not have.
    """
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", enabled=False):
        if any(each.dtype != dtype for each in weight):
            total = sum(each.numel() for each in weight)
            weight_buf = weight[0].new_empty(total, dtype=dtype)
            # a view is taken once those before are written, or autograd would not know it as one
            views = slices(weight_buf, weight)
            weight = [view.copy_(each) for view, each in zip(views, weight, strict=True)]
            weight_buf = weight_buf.detach()
        cast = [None if each is None else each.to(dtype) for each in (input, hx, cx)]
        return torch.ops.aten._cudnn_rnn(cast[0], weight, stride, weight_buf, *cast[1:], *rest)


def _pad_packed_sequence(
    data: Any, batch_sizes: Any, batch_first: bool, padding: float, total: int
) -> tuple[Any, Any]:
    """Do as torch does, which reads the batch sizes from memory."""
    sizes = batch_sizes.tolist()
    steps = total if total > 0 else len(sizes)
    output = data.new_full((steps, sizes[0], *data.shape[1:]), padding)
    start = step = 0
    while step < len(sizes):
        # steps of the same size are copied together
        size, first = sizes[step], step
        while step < len(sizes) and sizes[step] == size:
            step += 1
        rows = size * (step - first)
        chunk = data[start : start + rows].view(step - first, size, *data.shape[1:])
        output[first:step, :size] = chunk
        start += rows
    lengths = [sum(size > row for size in sizes) for row in range(sizes[0])]
    return output.transpose(0, 1) if batch_first else output, torch.tensor(lengths)


def _pack_padded_sequence_backward(
    grad: Any, input_size: list[int], batch_sizes: Any, batch_first: bool
) -> Any:
    shape = [*input_size]
    if not batch_first:
        return grad.new_zeros(shape)
    shape[0], shape[1] = shape[1], shape[0]
    return grad.new_zeros(shape).transpose(0, 1)
