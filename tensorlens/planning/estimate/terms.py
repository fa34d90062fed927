"""Rules for memory that no tensor of the program holds, with their sources.

Files without a folder are of ``aten/src/ATen/native/cuda`` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tensorlens.planning.card import Card
from tensorlens.planning.estimate.result import CONTEXT, EstimateTerm, Range
from tensorlens.planning.trace import Trace
from tensorlens.records.events import EventLog

_WHY = {
    "attention workspace": "the kernel of fused attention takes it while it runs (flash_api.cpp)",
    "cast copy": "a sum first casts its input (ReduceOpsUtils.h)",
    "contiguous copy": "a kernel makes its own copy of an argument whose layout it cannot read",
    "copies with channels first": (
        "cuDNN reads these kernels' tensors with channels first only (TensorFlow's "
        "cudnn_pooling_gpu.cc, conv_ops_impl.h)"
    ),
    "copy of the pooled tensor": "pooled again for the positions (TensorFlow's maxpooling_op.cc)",
    "cuBLAS workspace": (
        "torch keeps one for each thread and stream that multiplies matrices: 8,519,680 B, or "
        "32 MiB on Hopper and, from torch 2.12 on, Blackwell (CublasHandlePool.cpp)"
    ),
    "cuDNN RNN workspace": "cuDNN takes it while a recurrent network runs; only the card tells",
    "cuDNN workspace": (
        "the algorithm that cuDNN picks for a convolution takes it while it runs; only the card "
        "tells how much"
    ),
    "cuFFT workspace": (
        "the input in the order of the dimensions, and cuFFT's work area (SpectralOps.cpp, "
        "_exec_fft); only the card tells how much"
    ),
    "cuSOLVER workspace": (
        "a decomposition works on a copy of its input (BatchLinearAlgebraLib.cpp), with a work "
        "area that only the card can tell"
    ),
    "loss of each element": "written out before they are summed (Loss.cpp)",
    "own memory of the kernel": "oneDNN's on this processor, found by a run of it on zeros",
    "position of each maximum": "8 B each, to send gradients to (TensorFlow's maxpooling_op.cc)",
    "product of gradient and output": "of a softmax's backward (SoftMax.cu)",
    "reduction buffer": "blocks that share an output of a reduction meet in it (Reduce.cuh)",
    "softmax": "before rows that are -inf throughout become zeros (attention.cpp)",
    "sorted indices": "indices in their order, which are summed by it (Embedding.cu, UniqueCub.cu)",
    "sorting": (
        "a sort goes to and fro between its buffers and second ones, with counters "
        "(CUB's dispatch_radix_sort.cuh)"
    ),
}


def rule(name: str) -> str:
    """Return the rule behind a name, in one line."""
    return _WHY.get(name, "a kernel takes it for itself while it runs")


KERNELS = "loaded kernels"

_MIB = 2**20


def _mebibytes(low: int, point: int, high: int) -> Range:
    return Range(low * _MIB, point * _MIB, high * _MIB)


_CONTEXTS: tuple[tuple[tuple[int, int], Range], ...] = (
    ((12, 0), _mebibytes(300, 450, 700)),
    ((10, 0), _mebibytes(450, 600, 850)),
    ((9, 0), _mebibytes(400, 520, 700)),
    ((8, 6), _mebibytes(100, 300, 500)),
    ((8, 0), _mebibytes(350, 425, 550)),
    ((7, 5), _mebibytes(100, 160, 350)),
    ((7, 0), _mebibytes(250, 310, 450)),
    ((0, 0), _mebibytes(150, 250, 400)),
)
"""From which capability on to the context with kernels loaded lazily: 287,047,680 B with a segment
of 20 MiB on CUDA 11.7 (pytorch#86509), 426 MiB on an RTX 6000 Ada with CUDA 13.0
(unsloth-zoo#1053), about 400 MB by the maintainers (pytorch#109888). It grows with
multiprocessors, as each has room for the stacks of its threads."""

_ANY = _mebibytes(2, 20, 60)
_OF: Mapping[str, tuple[tuple[str, ...], Range]] = {
    "cuBLAS": (
        (
            *("::mm", "::addmm", "::bmm", "::baddbmm", "::mv", "::addmv", "::linear", "::matmul"),
            *("MatMul", "Einsum"),
        ),
        _mebibytes(0, 50, 130),
    ),
    "cuDNN": (
        ("convolution", "cudnn", "batch_norm", "_rnn", "Conv2D", "Conv3D", "Pool3D", "BatchNorm"),
        _mebibytes(0, 40, 250),
    ),
    "attention": (("attention",), _mebibytes(0, 5, 30)),
}
"""A library to the operators that use it, and the kernels that it brings: about what NVML saw
beyond torch's segments in the trainings published with xMem, which are of all of these."""


def context_overhead(card: Card | None, trace: Trace) -> tuple[EstimateTerm, ...]:
    """Return what is outside of the framework's memory, none for the CPU (``card`` None).

    The CUDA context, and the kernels that are loaded as they are first used: the more, the more
    kinds of operators a program uses (``CUDA_MODULE_LOADING=LAZY``, torch's default).
    """
    if card is None:
        return ()
    context = next(range_ for least, range_ in _CONTEXTS if card.capability >= least)
    rule = (
        f"what the driver keeps for a process on a card of capability {card.capability[0]}."
        f"{card.capability[1]}; varies with driver and CUDA version"
    )
    return EstimateTerm(CONTEXT, context, rule, apart=True), _kernels(trace.log, trace.framework)


def _kernels(log: EventLog, framework: str) -> EstimateTerm:
    names = {each.op for each in log.contexts if each.op}
    used = [library for library, (marks, _) in _OF.items() if _any_in(marks, names)]
    size = sum((_OF[library][1] for library in used), _ANY)
    libraries = ", ".join([framework, *used])
    rule = f"kernels are loaded as they are first used: those of {libraries}"
    return EstimateTerm(KERNELS, size, rule, apart=True)


def _any_in(marks: tuple[str, ...], names: Iterable[str]) -> bool:
    return any(mark in name for name in names for mark in marks)
