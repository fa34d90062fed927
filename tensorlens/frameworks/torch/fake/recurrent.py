"""RNN, LSTM and GRU: what their Python side asks of addresses and of lengths."""

from __future__ import annotations

from typing import Any

import torch


def install() -> None:
    """Let recurrent modules pack their weights, and sequences of known lengths."""
    torch.nn.RNNBase.flatten_parameters = _flatten_parameters
    torch._VF._pad_packed_sequence = _PadPackedSequence(torch._VF._pad_packed_sequence)


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
            torch.backends.cudnn.rnn.get_cudnn_mode(module.mode),
            module.hidden_size,
            module.proj_size,
            module.num_layers,
            module.batch_first,
            bool(module.bidirectional),
        )


class _PadPackedSequence:
    """``torch._VF._pad_packed_sequence`` for batch sizes that cannot be read from memory."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(
        self, data: Any, batch_sizes: Any, batch_first: bool, padding: float, total: int
    ) -> tuple[Any, Any]:
        if type(batch_sizes) is torch.Tensor and type(data) is torch.Tensor:
            result: tuple[Any, Any] = self._original(
                data, batch_sizes, batch_first, padding, total
            )
            return result
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
