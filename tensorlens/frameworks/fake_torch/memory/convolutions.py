"""What cuDNN takes for a convolution while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tensorlens.frameworks.fake_torch.tracker import Hidden
from tensorlens.records.cards import Card

_aten: Any = torch.ops.aten
CONVOLUTION = "cuDNN workspace"
_TILE = 32
"""Channels that a kernel for tensor cores takes at a time."""


class ConvolutionWorkspaces:
    """Gives the workspaces of convolutions, as a ``HiddenOf`` of a tracker.

    torch takes what the first plan of cuDNN's heuristics asks for, without a limit of its own
    (``run_conv_plan`` of ``aten/src/ATen/native/cudnn/Conv_v8.cpp``), and gives it back when the
    convolution is done; which plan that is only a card can tell. Known are the ways in which they
    work:

    - least: nothing, an implicit matrix product that reads its operands where they lie;
    - most: operands and result in another layout, as kernels for tensor cores want channels last;
      four times that with ``torch.backends.cudnn.benchmark``, which tries others too;
    - likely: the operands alone; with channels in tiles of 32 where the filter is one pixel, and
      the larger operand alone where it is not. Without tensor cores for the type: operands and
      result for a filter of several pixels, else nothing. Nothing where the program has channels
      last.

    The likely one was chosen to fit ten trainings of convolutional networks published with xMem
    (peaks of NVML on an RTX 3060 in float32, which has TF32 in cuDNN); the one without tensor cores
    to the lines of a CIFAR network that pytorch_memlab printed on a card of that time.

    Depthwise convolutions in float32 are kernels of torch's own and take nothing
    (``use_cudnn_depthwise`` of ``aten/src/ATen/native/Convolution.cpp``). What is not contiguous is
    copied first.

    Args:
        card: what the kernels run on.
    """

    OPERATORS = (_aten.convolution.default, _aten.convolution_backward.default)

    def __init__(self, card: Card) -> None:
        self._card = card

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Hidden]:
        """Return what an operator took besides its results."""
        if func is _aten.convolution.default:
            source, weight, groups = args[0], args[1], args[8]
            if not _is_on_gpu(source) or not result.numel():
                return ()
            found = _contiguous(source, weight)
            if not torch.backends.cudnn.enabled:
                return [*found, _columns(source, weight, result, groups)]
            if self._is_own(source, groups):
                return found
            return [*found, self._workspace([(source, weight, result)], weight)]
        if func is _aten.convolution_backward.default:
            gradient, source, weight, groups, wanted = *args[:3], args[9], args[10]
            if not _is_on_gpu(source) or not gradient.numel():
                return ()
            found = _contiguous(gradient, source, weight)
            if not torch.backends.cudnn.enabled:
                return [*found, _columns(source, weight, gradient, groups)]
            passes = []
            if wanted[0]:
                passes.append((gradient, weight, source))
            if wanted[1]:
                passes.append((source, gradient, weight))
            if self._is_own(source, groups) or not passes:
                return found
            return [*found, self._workspace(passes, weight)]
        return ()

    def _is_own(self, source: Any, groups: int) -> bool:
        """Whether torch has a kernel of its own for it."""
        depthwise = groups > 1 and groups == source.size(1)
        return depthwise and source.dtype == torch.float32 and source.is_contiguous()

    def _workspace(self, passes: Sequence[tuple[Any, Any, Any]], weight: Any) -> Hidden:
        """Return the larger one of passes, each of two operands and a result."""
        points = max(weight.shape[2:], default=1)
        likely = most = 0
        for one, other, result in passes:
            most = max(most, sum(_tiled(each, _TILE) for each in (one, other, result)))
            if _channels_last(one) or _channels_last(other):
                continue
            cores = self._has_tensor_cores(one.dtype)
            if points > 1 and not cores:
                size = sum(_tiled(each, 4) for each in (one, other, result))
            elif points > 1:
                size = max(_tiled(each, 4) for each in (one, other) if each is not weight)
            elif cores:
                size = _tiled(one, _TILE) + _tiled(other, _TILE)
            else:
                size = 0
            likely = max(likely, size)
        if torch.backends.cudnn.benchmark:
            most *= 4
        return Hidden(likely, 0, most, CONVOLUTION)

    def _has_tensor_cores(self, dtype: torch.dtype) -> bool:
        capability = self._card.capability
        if dtype == torch.float32:
            return capability >= (8, 0) and bool(torch.backends.cudnn.allow_tf32)
        if dtype == torch.float16:
            return capability >= (7, 0)
        return dtype == torch.bfloat16 and capability >= (8, 0)


def _is_on_gpu(tensor: Any) -> bool:
    return bool(tensor.device.type == "cuda")


def _tiled(tensor: Any, tile: int) -> int:
    """Return the bytes of a tensor whose second dimension is filled up to whole tiles."""
    channels = tensor.size(1)
    whole = -(-channels // tile) * tile
    return int(tensor.numel() // max(channels, 1) * whole * tensor.element_size())


def _channels_last(tensor: Any) -> bool:
    if tensor.dim() not in (4, 5) or tensor.is_contiguous():
        return False
    form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return bool(tensor.is_contiguous(memory_format=form))


def _contiguous(*tensors: Any) -> list[Hidden]:
    """Return the copies of what lies neither with channels first nor with channels last."""
    last = any(_channels_last(each) for each in tensors[-2:])
    return [
        Hidden.exactly(each.numel() * each.element_size(), "contiguous copy", before=True)
        for each in tensors
        if not (_channels_last(each) if last else each.is_contiguous()) and not _is_thin(each)
    ]


def _is_thin(tensor: Any) -> bool:
    """Whether both layouts are the same."""
    return bool(tensor.size(1) == 1 or all(size == 1 for size in tensor.shape[2:])) and bool(
        tensor.is_contiguous() or _channels_last(tensor)
    )


def _columns(source: Any, weight: Any, result: Any, groups: int) -> Hidden:
    """Return the unfolded image of ``slow_conv2d`` (``ConvolutionMM2d.cu``), one at a time."""
    taps = weight.numel() // max(weight.size(0), 1) * groups
    pixels = result.numel() // max(result.size(0) * result.size(1), 1)
    return Hidden.exactly(taps * pixels * source.element_size(), "unfolded image")
