"""What a process takes of a card outside of what the framework's allocator holds."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tensorlens.planning.estimate.result import CONTEXT, Range, Term
from tensorlens.records.cards import Card
from tensorlens.records.events import EventLog
from tensorlens.records.traces import Trace

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

_EAGER = 666_632_192 - 287_047_680
"""What loading all kernels at the start took instead (pytorch#86509)."""

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


def apart(card: Card | None, trace: Trace) -> tuple[Term, ...]:
    """Return what is outside of the framework's memory, none for the CPU (``card`` None).

    The CUDA context, and the kernels that are loaded as they are first used: with
    ``CUDA_MODULE_LOADING=LAZY``, torch's default, the more the more kinds of operators a program
    uses; with ``EAGER``, if that is set here, all at once.
    """
    if card is None:
        return ()
    context = next(range_ for least, range_ in _CONTEXTS if card.capability >= least)
    why = (
        f"what the driver keeps for a process on a card of capability {card.capability[0]}."
        f"{card.capability[1]}; varies with driver and CUDA version"
    )
    return Term(CONTEXT, context, why, apart=True), _kernels(trace.log, trace.framework)


def _kernels(log: EventLog, framework: str) -> Term:
    if os.environ.get("CUDA_MODULE_LOADING", "").upper() == "EAGER":
        size = Range(_EAGER // 2, _EAGER, 3 * _EAGER)
        why = "all kernels are loaded at the start (CUDA_MODULE_LOADING=EAGER)"
        return Term(KERNELS, size, why, apart=True)
    names = {each.op for each in log.contexts if each.op}
    used = [library for library, (marks, _) in _OF.items() if _any_in(marks, names)]
    size = sum((_OF[library][1] for library in used), _ANY)
    libraries = ", ".join([framework, *used])
    why = f"kernels are loaded as they are first used: those of {libraries}"
    return Term(KERNELS, size, why, apart=True)


def _any_in(marks: tuple[str, ...], names: Iterable[str]) -> bool:
    return any(mark in name for name in names for mark in marks)
