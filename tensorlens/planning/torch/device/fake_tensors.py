"""Fake tensors on a CUDA device that has no kernels: modes, copies, and kernels for their results.

Each kernel gives tensors of the shapes, types and strides that the CUDA kernel gives, and nothing
else. Of the others a run on the CPU, on zeros, tells what they give.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses import fake_impls, fake_tensor
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch

from tensorlens.planning.torch.memory.cudnn import rnn_reserve
from tensorlens.planning.trace import caution


def install() -> None:
    """Keep fake tensors from ever touching a device, and optimizers from telling them apart."""
    # a tensor is never made on the device itself, not even for a constant
    FakeTensorMode.avoid_device_init = property(lambda mode: True)
    fake_tensor.init_gpu_context = lambda device: None
    FakeTensorMode.in_kernel_invocation = property(_is_in_kernel, _set_in_kernel)
    FakeTensorMode.dispatch = _one_at_a_time(FakeTensorMode.dispatch)
    torch.utils.swap_tensors = _take_over
    torch.nn.Module._apply = _by_swapping(torch.nn.Module._apply)
    # inference goes through nested tensors there, which have no fake form
    torch.backends.mha.set_fastpath_enabled(False)
    # torch.optim takes the name of its module away
    supported: list[Any] = vars(sys.modules["torch.optim.optimizer"])["_foreach_supported_types"]
    if FakeTensor not in supported:
        supported.append(FakeTensor)


_kernels = threading.local()
"""For each mode whether this thread is in one of its kernels.

All threads of a program share the mode, in which torch keeps a single answer.
"""


def _is_in_kernel(mode: Any) -> bool:
    return getattr(_kernels, str(id(mode)), False)


def _set_in_kernel(mode: Any, value: bool) -> None:
    setattr(_kernels, str(id(mode)), value)


def _one_at_a_time(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    lock = threading.RLock()

    def dispatch_alone(mode: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return dispatch(mode, *args, **kwargs)

    return dispatch_alone


def _by_swapping(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Let a module that moves swap its parameters: up to torch 2.7 it sets ``data``.

    That leaves the device of a fake tensor as it was.
    """

    @functools.wraps(apply)
    def apply_and_swap(*args: Any, **kwargs: Any) -> Any:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(*args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return apply_and_swap


_swap = torch.utils.swap_tensors


def _take_over(tensor: Any, other: Any) -> None:
    """Give a fake tensor the contents of another, where a module moves its parameters.

    ``torch.utils.swap_tensors`` refuses tensors that a weak reference or the graph leads to, which
    is most of them here. A module on a real device sets ``data`` instead, so this does.
    """
    if not (isinstance(tensor, FakeTensor) and isinstance(other, FakeTensor)):
        _swap(tensor, other)
        return
    tensor.data = other
    tensor.fake_device = other.fake_device
    tensor.constant = None


_MARK = "tensorlens_is_pinned"


def install_on_card() -> None:
    """Do the same for what only programs on a card do, and let fake tensors know its kernels."""
    for name, kernel in _KERNELS.items():
        packet = getattr(_aten, name, None)
        for overload in () if packet is None else packet.overloads():
            if not overload.endswith("out"):
                op_implementations_dict[getattr(packet, overload)] = kernel
    # what fake tensors would run on the device
    fake_tensor.run_fallback_kernel = _run_on_zeros
    fake_impls.run_fallback_kernel = _run_on_zeros
    # recurrent modules pack their weights
    torch._use_cudnn_rnn_flatten_weight = lambda: True
    # both are written in terms of other operators, but look at addresses
    _library.impl("_pad_packed_sequence", _pad_packed_sequence, "AutogradCUDA")
    _library.impl("_pack_padded_sequence_backward", _pack_padded_sequence_backward, "AutogradCUDA")
    _library.impl("_cudnn_rnn", _under_autocast, "AutocastCUDA")
    # nn.DataParallel on one card asks C++ for it
    torch._C._scatter = _scatter
    pin = torch.Tensor.pin_memory

    def pin_memory(tensor: Any, device: Any = None) -> Any:
        if is_pinned(tensor):
            return tensor
        result = pin(tensor)
        setattr(result.untyped_storage(), _MARK, True)
        return result

    def is_pinned(tensor: Any, device: Any = None) -> bool:
        return tensor.layout is torch.strided and hasattr(tensor.untyped_storage(), _MARK)

    torch.Tensor.pin_memory, torch.Tensor.is_pinned = pin_memory, is_pinned


def _scatter(
    tensor: Any, devices: Sequence[int], chunk_sizes: Any, dim: int, streams: Any
) -> list[Any]:
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes)
    places = [torch.device("cuda", each) for each in devices]
    return [chunk.to(place) for chunk, place in zip(chunks, places, strict=False)]


_aten = torch.ops.aten
_GRU_GATES = 5  # aten/src/ATen/native/cuda/RNN.cu, GRU_WORKSPACE_MULTIPLIER
_library = torch.library.Library("aten", "IMPL")
"""Kept: what it registers goes with it."""


def _in_place(mode: Any, func: Any, *args: Any, **kwargs: Any) -> None:
    """Change tensors in place, or nothing at all."""


def _never(mode: Any, func: Any, *args: Any, **kwargs: Any) -> bool:
    return False


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
        # weights that do not lie one behind the other are copied until they do
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
        numbers = output.numel() // out_size * hidden_size
        reserve = rnn_reserve(cudnn_mode, numbers, num_layers, input.itemsize, dropout)
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
    like = partial(torch.empty_like, memory_format=torch.contiguous_format)
    of_states = (
        like(state) if is_wanted and state is not None else None
        for state, is_wanted in ((hx, wanted[1]), (cx, wanted[2]))
    )
    return like(input), *of_states, gradients or [None] * len(weight)


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
        return _aten._cudnn_rnn(cast[0], weight, stride, weight_buf, *cast[1:], *rest)


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


LARGEST = 1 << 28
"""Bytes of arguments beyond which nothing is run."""


def _run_on_zeros(mode: Any, func: Any, flat_args: Any, args_spec: Any, error: Exception) -> Any:
    """Run an operator on the CPU, on zeros, to learn what it gives."""
    fakes = [each for each in flat_args if mode.is_our_fake(each)]
    if torch.Tag.inplace_view in func.tags:
        raise error
    if sum(fake.numel() * fake.element_size() for fake in fakes) > LARGEST:
        raise error
    device = next((fake.device for fake in fakes if fake.device.type != "cpu"), None)
    if device is not None:
        caution(f"{func} is not known on the GPU: its results were taken to be as on the CPU")
    originals: dict[int, Any] = {}

    def real(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if not mode.is_our_fake(value):
            return value
        zeros = torch.zeros_like(value, device="cpu")
        if value.is_sparse:
            zeros._coalesced_(value.is_coalesced())
        originals[id(zeros)] = value
        return zeros

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in originals:
            return originals[id(value)]
        made = mode.fake_tensor_converter.from_real_tensor(mode, value)
        if device is not None:
            made.fake_device = device
        return made

    with no_dispatch():
        real_args = [real(each) for each in flat_args]
        args, kwargs = pytree.tree_unflatten(real_args, args_spec)
        result = func(*args, **kwargs)
    return pytree.tree_map(fake, result)
