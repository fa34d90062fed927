"""What operators give on a CUDA device where torch has no word about it for fake tensors.

Each gives tensors of the shapes, types and strides that the CUDA kernel gives, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_impls import op_implementations_dict

from tensorlens.frameworks.fake_torch.memory.recurrent_memory import rnn_reserve

_aten = torch.ops.aten
_GRU_GATES = 5  # aten/src/ATen/native/cuda/RNN.cu, GRU_WORKSPACE_MULTIPLIER


def install() -> None:
    """Let fake tensors know these."""
    for name, kernel in _KERNELS.items():
        packet = getattr(_aten, name, None)
        for overload in () if packet is None else packet.overloads():
            if not overload.endswith("out"):
                op_implementations_dict[getattr(packet, overload)] = kernel


def _in_place(mode: Any, func: Any, *args: Any, **kwargs: Any) -> None:
    """Change tensors in place, or nothing at all."""


def _never(mode: Any, func: Any, *args: Any, **kwargs: Any) -> bool:
    return False


def _gru_cell(
    mode: Any,
    func: Any,
    input_gates: Any,
    hidden_gates: Any,
    hx: Any,
    input_bias: Any = None,
    hidden_bias: Any = None,
) -> tuple[Any, Any]:
    return torch.empty_like(hx), hx.new_empty(hx.size(0), hx.size(1) * _GRU_GATES)


def _gru_cell_backward(
    mode: Any, func: Any, grad_hy: Any, workspace: Any, has_bias: bool
) -> tuple[Any, ...]:
    rows, hidden = workspace.size(0), workspace.size(1) // _GRU_GATES
    gates = [workspace.new_empty(rows, hidden * 3) for _ in range(2)]
    biases = [workspace.new_empty(hidden * 3) if has_bias else None for _ in range(2)]
    return (*gates, grad_hy.new_empty(rows, hidden), *biases)


def _cudnn_rnn(
    mode: Any,
    func: Any,
    input: Any,
    weight: list[Any],
    weight_stride0: int,
    weight_buf: Any,
    hx: Any,
    cx: Any,
    cudnn_mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: list[int],
    dropout_state: Any,
) -> tuple[Any, ...]:
    if weight_buf is None:
        # weights that do not lie one behind the other are copied until they do
        weight_buf = weight[0].new_empty(sum(each.numel() for each in weight))
    directions = 2 if bidirectional else 1
    out_size = proj_size or hidden_size
    if batch_sizes:
        batch, out_shape = batch_sizes[0], [input.size(0), out_size * directions]
    elif batch_first:
        batch, out_shape = input.size(0), [input.size(0), input.size(1), out_size * directions]
    else:
        batch, out_shape = input.size(1), [input.size(0), input.size(1), out_size * directions]
    if batch_first and not batch_sizes:
        # cuDNN writes time first
        output = input.new_empty(out_shape[1], out_shape[0], out_shape[2]).transpose(0, 1)
    else:
        output = input.new_empty(out_shape)
    layers = num_layers * directions
    reserve = 0
    if train:
        rows = output.numel() // (out_size * directions)
        reserve = rnn_reserve(
            cudnn_mode, rows, 1, hidden_size, num_layers, directions, input.itemsize, dropout
        )
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
        # one buffer, as the weights have one
        buffer = weight_buf.new_empty(weight_buf.shape)
        gradients = list(slices(buffer, weight))
    return (
        torch.empty_like(input, memory_format=torch.contiguous_format),
        torch.empty_like(hx, memory_format=torch.contiguous_format) if wanted[1] else None,
        torch.empty_like(cx, memory_format=torch.contiguous_format)
        if wanted[2] and cx is not None
        else None,
        gradients if gradients is not None else [None] * len(weight),
    )


def slices(buffer: Any, shapes_of: Iterable[Any]) -> Iterable[Any]:
    """Give views of a flat buffer, one behind the other, in the shapes of these tensors."""
    offset = 0
    for tensor in shapes_of:
        yield buffer.narrow(0, offset, tensor.numel()).view(tensor.shape)
        offset += tensor.numel()


def _cudnn_rnn_flatten_weight(
    mode: Any, func: Any, weight_arr: list[Any], *args: Any, **kwargs: Any
) -> Any:
    buffer = weight_arr[0].new_empty(sum(each.numel() for each in weight_arr))
    with torch.no_grad():
        for weight, place in zip(weight_arr, slices(buffer, weight_arr), strict=True):
            weight.set_(place)
    return buffer


def _pin_memory(mode: Any, func: Any, tensor: Any, device: Any = None) -> Any:
    return torch.empty_like(tensor)


_KERNELS: dict[str, Callable[..., Any]] = {
    "_fused_sgd_": _in_place,
    "_fused_adagrad_": _in_place,
    "record_stream": _in_place,
    "_use_cudnn_ctc_loss": _never,
    "_use_miopen_ctc_loss": _never,
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    "_cudnn_rnn": _cudnn_rnn,
    "_cudnn_rnn_backward": _cudnn_rnn_backward,
    "_cudnn_rnn_flatten_weight": _cudnn_rnn_flatten_weight,
    "_pin_memory": _pin_memory,
    "is_pinned": _never,
}
