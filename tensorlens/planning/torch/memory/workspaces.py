"""Workspaces of cuBLAS and cuDNN, which torch takes from its own allocator."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from tensorlens.frameworks.torch.release import Release, installed_release
from tensorlens.planning.card import Card
from tensorlens.planning.torch.tracker import Scratch, ScratchRule

_aten = torch.ops.aten
RECURRENT = "cuDNN RNN workspace"
_LSTM, _GRU = 2, 3
_GATES = {_LSTM: 4, _GRU: 3}
_KEPT = {_LSTM: 6, _GRU: 5}


def rnn_reserve(
    mode: int,
    steps: int,
    batch: int,
    hidden_size: int,
    layers: int,
    directions: int,
    itemsize: int,
    dropout: float = 0.0,
) -> int:
    """Return the likely bytes that cuDNN keeps of a recurrent network's forward pass.

    That is what ``_cudnn_rnn`` gives as its fourth result for training. cuDNN does not tell its
    formula; taken are, for each step, layer, direction and hidden unit, the gates and the states
    that backward needs: 6 numbers for an LSTM, 5 for a GRU, 2 for a plain one; and a byte for each
    number that dropout may leave out between layers.

    Args:
        mode: ``cudnnRNNMode_t``: 0 and 1 plain, 2 LSTM, 3 GRU.
        steps: of the sequence.
        batch: sequences.
        hidden_size: of a layer.
        layers: one on the other.
        directions: 1 or 2.
        itemsize: bytes of a number.
        dropout: between layers.
    """
    numbers = steps * batch * hidden_size * directions
    kept = numbers * layers * _KEPT.get(mode, 2) * itemsize
    return kept + (numbers * (layers - 1) if dropout > 0 else 0)


class RecurrentWorkspaces:
    """Gives what recurrent networks take for a call, as a ``ScratchRule`` of a tracker.

    cuDNN does not tell its formula: likely are the gates of all steps of one layer, which one
    matrix product gives (``cudnnGetRNNTempSpaceSizes`` in ``aten/src/ATen/native/cudnn/RNN.cpp``);
    the least is nothing, the most those of all layers.
    """

    OPERATORS = (_aten._cudnn_rnn.default, _aten._cudnn_rnn_backward.default)

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return what an operator took besides its results."""
        if func is _aten._cudnn_rnn.default:
            mode, hidden_size, layers, bidirectional = args[6], args[7], args[9], args[13]
        elif func is _aten._cudnn_rnn_backward.default:
            mode, hidden_size, layers, bidirectional = args[10], args[11], args[13], args[17]
        else:
            return ()
        source = args[0]
        rows = source.numel() // max(source.size(-1), 1)
        layer = rows * hidden_size * _GATES.get(mode, 1) * source.element_size()
        likely = layer * (2 if bidirectional else 1)
        return (Scratch(likely, 0, likely * max(layers, 1), RECURRENT),)


CONVOLUTION = "cuDNN workspace"
_TILE = 32
"""Channels that a kernel for tensor cores takes at a time."""


class ConvolutionWorkspaces:
    """Gives the workspaces of convolutions, as a ``ScratchRule`` of a tracker.

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
    ) -> Sequence[Scratch]:
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

    def _workspace(self, passes: Sequence[tuple[Any, Any, Any]], weight: Any) -> Scratch:
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
        return Scratch(likely, 0, most, CONVOLUTION)

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


def _contiguous(*tensors: Any) -> list[Scratch]:
    """Return the copies of what lies neither with channels first nor with channels last."""
    last = any(_channels_last(each) for each in tensors[-2:])
    return [
        Scratch.exactly(each.numel() * each.element_size(), "contiguous copy", before=True)
        for each in tensors
        if not (_channels_last(each) if last else each.is_contiguous()) and not _is_thin(each)
    ]


def _is_thin(tensor: Any) -> bool:
    """Whether both layouts are the same."""
    return bool(tensor.size(1) == 1 or all(size == 1 for size in tensor.shape[2:])) and bool(
        tensor.is_contiguous() or _channels_last(tensor)
    )


def _columns(source: Any, weight: Any, result: Any, groups: int) -> Scratch:
    """Return the unfolded image of ``slow_conv2d`` (``ConvolutionMM2d.cu``), one at a time."""
    taps = weight.numel() // max(weight.size(0), 1) * groups
    pixels = result.numel() // max(result.size(0) * result.size(1), 1)
    return Scratch.exactly(taps * pixels * source.element_size(), "unfolded image")


_KIB = 1024
_SMALL = (4096 * 2 + 16 * 8) * _KIB
_LARGE = 4096 * 8 * _KIB
_LARGE_SINCE: tuple[tuple[Release, frozenset[int]], ...] = (
    ((2, 14, 0), frozenset({9, 10, 11, 12})),
    ((2, 12, 0), frozenset({9, 10, 12})),
    ((0, 0, 0), frozenset({9})),
)
"""From which release on cards of which major capabilities have the large workspace."""
_LT = 1024 * _KIB
CUBLAS = "cuBLAS workspace"
CUBLASLT = "cuBLASLt workspace"
_FALSE = ("0", "off", "false", "no", "n")


def _overloads(*names: str) -> frozenset[Any]:
    packets = [getattr(_aten, name) for name in names if hasattr(_aten, name)]
    return frozenset(getattr(packet, each) for packet in packets for each in packet.overloads())


_WITH_BIAS = _overloads("addmm", "_addmm_activation")
_WHOLE = _overloads("linear", "matmul")
"""Come in one piece where no gradients are noted at all (``torch.inference_mode``)."""
_OF_INTEGERS = _overloads("_int_mm")
_CALLS = (
    _WITH_BIAS
    | _WHOLE
    | _OF_INTEGERS
    | _overloads("mm", "addmm_", "bmm", "baddbmm", "baddbmm_", "mv", "addmv", "addmv_")
    | _overloads("dot", "vdot", "addbmm", "addbmm_", "_scaled_mm")
)


class Workspaces:
    """Gives the workspaces of cuBLAS and cuDNN, as a ``ScratchRule`` of a tracker.

    To be asked after the temporaries of an operator: copies of operands come before a workspace.

    cuBLAS: ``aten/src/ATen/cuda/CublasHandlePool.cpp`` of torch 2.13. Each thread has a handle of
    its own, and each handle gets a workspace at its first call on a stream, which stays; a step
    that trains has two, as autograd runs the backward pass on a thread of its own. For its bytes
    see :func:`cublas_workspace`. cuBLASLt takes the same one, unless
    ``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` is switched off: then one of 1 MiB, or of
    ``CUBLASLT_WORKSPACE_SIZE`` KiB.

    For cuDNN see :class:`ConvolutionWorkspaces` and
    :class:`RecurrentWorkspaces`.

    Args:
        card: whose libraries they are.
        environment: where the variables are looked up.
    """

    def __init__(self, card: Card, environment: Mapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self.cublas = cublas_workspace(card, environment, installed_release())
        self.cublaslt = cublaslt_workspace(self.cublas, environment)
        self._unified = _is_unified(environment)
        self._held: set[tuple[str, tuple[int, int, int]]] = set()
        rules: dict[ScratchRule, Iterable[Any]] = {
            self._matrices: _CALLS,
            ConvolutionWorkspaces(card): ConvolutionWorkspaces.OPERATORS,
            RecurrentWorkspaces(): RecurrentWorkspaces.OPERATORS,
        }
        # by address: operators live as long as torch, and their own hash is slow
        self._of = {id(each): rule for rule, operators in rules.items() for each in operators}

    def __call__(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        """Return what an operator took besides its results."""
        rule = self._of.get(id(func))
        return () if rule is None else rule(func, args, kwargs, result, thread)

    def _matrices(
        self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any, thread: int
    ) -> Sequence[Scratch]:
        where = result[0] if isinstance(result, (tuple, list)) else result
        device = where.device
        if device.type != "cuda":
            return ()
        index = device.index or 0
        key = index, _stream(index), thread
        name, nbytes = CUBLAS, self.cublas
        if not self._unified and _takes_lt(func, args, kwargs):
            name, nbytes = CUBLASLT, self.cublaslt
        if not nbytes or (name, key) in self._held or not _is_multiplied(func, where, args):
            return ()
        self._held.add((name, key))
        return (Scratch.exactly(nbytes, name, stays=True),)


def cublas_workspace(card: Card, environment: Mapping[str, str], release: Release) -> int:
    """Return the bytes of a handle's workspace (``parseChosenWorkspaceSize``).

    What ``CUBLAS_WORKSPACE_CONFIG`` says, else 8,519,680 (``:4096:2:16:8``), or 32 MiB on some
    cards: before torch 2.12 those of capability 9, from 2.12 on 9, 10 and 12 (pytorch pull request
    175344), from 2.14 on 11 too (189312). Read in the ``libtorch_cuda.so`` of the published 2.11.0,
    2.12.0, 2.13.0 and 2.14.1; 2.14.0 is taken to be as 2.14.1.
    """
    pieces = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pieces:
        return sum(int(size) * int(count) for size, count in pieces) * _KIB
    large = next(majors for since, majors in _LARGE_SINCE if release >= since)
    return _LARGE if card.capability[0] in large else _SMALL


def cublaslt_workspace(cublas: int, environment: Mapping[str, str]) -> int:
    """Return the bytes that cuBLASLt has: a part of cuBLAS's, or its own."""
    text = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    own = int(text) * _KIB if text.isdigit() else _LT
    return min(own, cublas) if _is_unified(environment) else own


def _is_unified(environment: Mapping[str, str]) -> bool:
    return environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1").lower() not in _FALSE


def _stream(index: int) -> int:
    current = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return 0 if current is None else int(current(index))


def _is_multiplied(func: Any, result: Any, args: Sequence[Any]) -> bool:
    """Whether cuBLAS is called: not for whole numbers, nor where there is nothing to do."""
    if not result.numel() or not all(
        each.numel() for each in args[:3] if isinstance(each, torch.Tensor)
    ):
        return False
    first = next((each for each in args if isinstance(each, torch.Tensor)), result)
    floating = first.dtype.is_floating_point or first.dtype.is_complex
    return floating or func in _OF_INTEGERS


def _takes_lt(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether ``addmm`` adds its bias in the same kernel."""
    if func not in _WITH_BIAS:
        return False
    bias, left, right = args[:3]
    return bool(
        kwargs.get("beta", 1) == 1
        and bias.dim() == 1
        and bias.is_contiguous()
        and bias.size(0) == right.size(1)
        and min(*left.shape, *right.shape) > 1
    )
