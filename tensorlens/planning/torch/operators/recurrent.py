"""Recurrent networks: results of cuDNN's operators, and packed sequences.

Each fake kernel gives tensors of the shapes, types and strides that the CUDA kernel gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from tensorlens.planning.torch.memory.cudnn import rnn_reserve
from tensorlens.planning.torch.operators.constants import constant_of
from tensorlens.planning.torch.operators.data_sizes import new_tensor, tensor_with, warn_of_size

_aten = torch.ops.aten
_GRU_GATES = 5  # aten/src/ATen/native/cuda/RNN.cu, GRU_WORKSPACE_MULTIPLIER


def _gru_cell(
    mode: Any, func: Any, input_gates: Any, hidden_gates: Any, hx: Any, *biases: Any
) -> tuple[Any, Any]:
    return torch.empty_like(hx), hx.new_empty(hx.size(0), hx.size(1) * _GRU_GATES)


def _gru_cell_backward(
    mode: Any, func: Any, grad_hy: Any, workspace: Any, has_bias: bool
) -> tuple[Any, ...]:
    rows, hidden = workspace.size(0), workspace.size(1) // _GRU_GATES
    gates = [workspace.new_empty(rows, hidden * 3) for _ in range(2)]
    biases = [workspace.new_empty(hidden * 3) if has_bias else None for _ in range(2)]
    return (*gates, grad_hy.new_empty(rows, hidden), *biases)


def _cudnn_rnn(mode: Any, func: Any, *args: Any) -> tuple[Any, ...]:
    input, weight, _, weight_buf, hx, cx, cudnn_mode, hidden_size, proj_size = args[:9]
    num_layers, batch_first, dropout, train, bidirectional, batch_sizes, _ = args[9:]
    if weight_buf is None:
        # weights that are not contiguous in one buffer are copied into one
        weight_buf = weight[0].new_empty(sum(each.numel() for each in weight))
    directions = 2 if bidirectional else 1
    out_size = proj_size or hidden_size
    if batch_first and not batch_sizes:
        # cuDNN writes time first
        batch, steps = input.shape[:2]
        output = input.new_empty(steps, batch, out_size * directions).transpose(0, 1)
    else:
        batch = batch_sizes[0] if batch_sizes else input.size(1)
        output = input.new_empty(*input.shape[:-1], out_size * directions)
    layers = num_layers * directions
    reserve = 0
    if train:
        elements = output.numel() // out_size * hidden_size
        reserve = rnn_reserve(cudnn_mode, elements, num_layers, input.itemsize, dropout)
    return (
        output,
        hx.new_empty(layers, batch, out_size),
        input.new_empty(0) if cx is None else cx.new_empty(layers, batch, hidden_size),
        input.new_empty(reserve, dtype=torch.uint8),
        weight_buf,
    )


def _cudnn_rnn_backward(mode: Any, func: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
    input, weight, _, weight_buf, hx, cx = args[:6]
    wanted = args[-1]
    gradients = None
    if wanted[3]:
        # one buffer, as for the weights
        buffer = weight_buf.new_empty(weight_buf.shape)
        gradients = list(_slices(buffer, weight))
    like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    states = (
        like(state) if is_wanted and state is not None else None
        for state, is_wanted in ((hx, wanted[1]), (cx, wanted[2]))
    )
    return like(input), *states, gradients or [None] * len(weight)


def _cudnn_rnn_flatten_weight(
    mode: Any, func: Any, weight_arr: list[Any], *args: Any, **kwargs: Any
) -> Any:
    buffer = weight_arr[0].new_empty(sum(each.numel() for each in weight_arr))
    with torch.no_grad():
        for weight, view in zip(weight_arr, _slices(buffer, weight_arr), strict=True):
            weight.set_(view)
    return buffer


def _slices(buffer: Any, tensors: Iterable[Any]) -> Iterable[Any]:
    """Yield consecutive views of a flat buffer in the shapes of these tensors."""
    offset = 0
    for tensor in tensors:
        yield buffer.narrow(0, offset, tensor.numel()).view(tensor.shape)
        offset += tensor.numel()


CUDA_KERNELS: dict[str, Callable[..., Any]] = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "_cudnn_rnn_flatten_weight": _cudnn_rnn_flatten_weight,
}


def _under_autocast(
    input: Any, weight: list[Any], stride: int, weight_buf: Any, hx: Any, cx: Any, *rest: Any
) -> Any:
    """Cast the arguments of cuDNN, and its weights into one buffer.

    As aten/src/ATen/cudnn/AutocastRNN.cpp, which a build without CUDA does not have.
    """
    dtype = torch.get_autocast_dtype("cuda")
    with torch.autocast("cuda", enabled=False):
        if any(each.dtype != dtype for each in weight):
            total = sum(each.numel() for each in weight)
            weight_buf = weight[0].new_empty(total, dtype=dtype)
            # a view is made once those before it are written, or autograd would not see a view
            views = _slices(weight_buf, weight)
            weight = [view.copy_(each) for view, each in zip(views, weight, strict=True)]
            weight_buf = weight_buf.detach()
        cast = [None if each is None else each.to(dtype) for each in (input, hx, cx)]
        return _aten._cudnn_rnn(cast[0], weight, stride, weight_buf, *cast[1:], *rest)


def _pad_packed_sequence(
    data: Any, batch_sizes: Any, batch_first: bool, padding: float, total: int
) -> tuple[Any, Any]:
    """Pad as torch does; torch reads the batch sizes from memory."""
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


DISPATCHED: dict[str, tuple[Callable[..., Any], str]] = {
    "_pad_packed_sequence": (_pad_packed_sequence, "AutogradCUDA"),
    "_pack_padded_sequence_backward": (_pack_padded_sequence_backward, "AutogradCUDA"),
    "_cudnn_rnn": (_under_autocast, "AutocastCUDA"),
}
"""Implementations by operator, with their dispatch key. The two of packed sequences are composites
in torch, but look at addresses."""


def _pack(mode: Any, func: Any, data: Any, lengths: Any, batch_first: bool) -> Any:
    batch, steps = data.shape[:2] if batch_first else (data.shape[1], data.shape[0])
    constant = constant_of(lengths)
    if constant is None or constant.state.assumed:
        warn_of_size("pack_padded_sequence", batch * steps)
        sizes = [batch] * steps
    else:
        known = constant.tensor.tolist()
        sizes = [sum(length > step for length in known) for step in range(max(known))]
    with torch._C._DisableTorchDispatch():
        values = torch.tensor(sizes, device="cpu")
    counts = tensor_with(mode, lengths, values, False)
    return new_tensor(mode, data, (sum(sizes), *data.shape[2:])), counts


ANSWERS: dict[Any, Callable[..., Any]] = {_aten._pack_padded_sequence.default: _pack}
