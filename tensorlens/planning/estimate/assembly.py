"""Makes an estimate from a trace: simulated allocators, and memory outside of the framework.

Files named without a folder are in ``aten/src/ATen/native/cuda`` of torch 2.13.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tensorlens.errors import TensorlensError
from tensorlens.planning.allocators.cuda import parse_settings
from tensorlens.planning.card import Card, DeviceSpec
from tensorlens.planning.estimate.result import CONTEXT, Estimate, EstimateTerm, Range
from tensorlens.planning.estimate.simulation import Simulation, block_changes, least_capacity
from tensorlens.planning.trace import Caution, Trace
from tensorlens.recording.analysis.event_index import EventIndex
from tensorlens.recording.recordings import Recording
from tensorlens.records.logs.events import EventLog, Label, Origin
from tensorlens.records.torch_files.sizes import Rules
from tensorlens.units import format_bytes


def assemble(trace: Trace, spec: DeviceSpec, program: str, settings: str = "") -> Estimate:
    """Return the estimate for a device; ``settings`` are those of torch's allocator."""
    device, card = spec.device, spec.card
    if trace.framework != "torch":
        settings = ""
    if trace.unsimulated:
        program = f"{program} without XLA"
    _name_inputs(trace)
    rules, unsimulated = parse_settings(settings)
    device = _device_name(trace, device)
    variants = [Simulation(trace, rules, size).run() for size in _sizes(trace)]
    likely = variants[len(variants) // 2]
    allocated, reserved = map(_range, zip(*(each.peaks(device) for each in variants), strict=True))
    if trace.cpu_peak_bounds is not None:
        low, high = trace.cpu_peak_bounds
        allocated = reserved = Range(low, allocated.point, high)
    log = likely.log
    _label_workspaces(trace, likely)
    row = _highest(log, device)
    return Estimate(
        device=device,
        card=card,
        allocated=allocated,
        reserved=reserved,
        least_capacity=_capacity(trace, device, rules, reserved),
        steps=tuple(likely.figures[device]),
        terms=(*_terms(trace, likely, device, row), *context_overhead(card, trace)),
        recording=Recording(log, _origin(trace, program)),
        peak_row=row,
        capacity=spec.capacity,
        batch=trace.batch or _batch(log, device),
        settings=settings,
        warnings=(
            *(Caution(f"{name} is not simulated") for name in unsimulated if device != "cpu"),
            *trace.cautions,
            *_growth(log, device),
        ),
        unsimulated=trace.unsimulated,
        versions=trace.versions,
        program=program,
        framework=trace.framework,
        formulas=trace.formulas,
    )


def _name_inputs(trace: Trace) -> None:
    """Name the inputs: blocks without a label that no module and no phase of a step made."""
    log, index = trace.log, EventIndex(trace.log)
    for row, label in trace.inputs.items():
        site = index.site(row)
        if log.label[row] < 0 and site.phase == "other" and site.module is None:
            log.name(row, label)


def _device_name(trace: Trace, device: str) -> str:
    """Return the device's name in the trace: ``cuda:0`` for ``cuda``."""
    names = [name for name in trace.log.devices if f"{name}:".startswith(f"{device}:")]
    if not names:
        raise TensorlensError(
            f"the program puts nothing on {device}: there is nothing to estimate; "
            "a function of it that makes the step is named as file.py:make_step"
        )
    return names[0]


def _sizes(trace: Trace) -> list[Callable[[int], int] | None]:
    """Return functions from a request's row to its least, likeliest and largest size."""
    if not trace.bounds:
        return [None]
    size, bounds = trace.log.size, trace.bounds

    def bound(end: int) -> Callable[[int], int]:
        return lambda row: bounds[row][end] if row in bounds else size[row]

    return [bound(0), None, bound(1)]


def _range(figures: Sequence[int]) -> Range:
    """Return a range from three figures, the likeliest in the middle."""
    return Range(min(figures), figures[len(figures) // 2], max(figures))


def _capacity(trace: Trace, device: str, rules: Rules, reserved: Range) -> Range:
    if device == "cpu":
        return reserved
    peaks = (reserved.low, reserved.point, reserved.high)
    least = (
        least_capacity(trace, device, rules, most, size)
        for most, size in zip(peaks, _sizes(trace), strict=False)
    )
    return _range(sorted(least))


def _highest(log: EventLog, device: str) -> int:
    """Return the row after which most was allocated, remainders included."""
    held, most, highest = 0, -1, -1
    for row, _, nbytes in block_changes(log, device):
        held += nbytes
        if held > most:
            most, highest = held, row
    return highest


def _label_workspaces(trace: Trace, simulated: Simulation) -> None:
    """Label blocks that belong to no tensor and outlive the operator that requested them."""
    log = simulated.log
    for row, name in trace.scratch.items():
        made = simulated.rows.get(row)
        if made is not None and log.pair[made] < 0:
            log.name(made, Label(name, "other"))
            # a library shares it among all lines and layers
            log.stack[made] = -1
            if log.context[made] >= 0:
                context = log.contexts[log.context[made]]
                log.context[made] = log.contexts.number(replace(context, forward=-1, module=None))


def _terms(trace: Trace, simulated: Simulation, device: str, peak: int) -> list[EstimateTerm]:
    """Return the terms: memory at the peak that belongs to no tensor, by name."""
    log = simulated.log
    found: dict[str, Range] = {}
    for row, name in trace.scratch.items():
        made = simulated.rows.get(row)
        if made is None or log.devices[log.device[made]] != device:
            continue
        pair = log.pair[made]
        if made <= peak and (pair < 0 or pair > peak):
            size = trace.log.size[row]
            least, most = trace.bounds.get(row, (size, size))
            found[name] = found.get(name, Range(0, 0, 0)) + Range(least, size, most)
    return [EstimateTerm(name, nbytes, _WHY.get(name, _OWN)) for name, nbytes in found.items()]


def _batch(log: EventLog, device: str) -> int | None:
    """Return the most common first dimension of inputs, of one-dimensional ones only if all are."""
    number = log.devices.index(device)
    rows = zip(log.label, log.device, strict=True)
    labels = [log.labels[label] for label, where in rows if label >= 0 and where == number]
    shapes = [label.shape for label in labels if label.role == "input" and label.shape]
    sizes = Counter(shape[0] for shape in shapes if len(shape) > 1)
    sizes = sizes or Counter(shape[0] for shape in shapes)
    return sizes.most_common(1)[0][0] if sizes else None


def _growth(log: EventLog, device: str) -> list[Caution]:
    """Return a warning if the last step left more bytes than the one before it."""
    if len(log.marks) < 3:
        return []
    *_, before, last, end = log.marks
    grown = sum(
        log.size[made] if nbytes > 0 else -log.size[made]
        for at, made, nbytes in block_changes(log, device)
        if last.row <= at < end.row
    )
    if grown <= 0:
        return []
    return [
        Caution(
            f"{last.name} leaves {format_bytes(grown)} more than {before.name}: if that goes on, "
            "no capacity is enough (tensorlens.find_leaks says what is kept)"
        )
    ]


def _origin(trace: Trace, program: str) -> Origin:
    what, simulated = "fake tensors", "simulated caching allocator"
    if trace.framework == "tensorflow":
        what, simulated = "the graph of a train step", "simulated BFC allocator"
    return Origin(
        provenance="estimated",
        process=program,
        source={
            name: what if name == "cpu" else f"{what}, {simulated}" for name in trace.log.devices
        },
        notes=tuple(caution.text for caution in trace.cautions),
    )


_OWN = "a kernel takes it for itself while it runs"
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
        "32 MiB on Hopper and Blackwell (CublasHandlePool.cpp)"
    ),
    "cuDNN RNN workspace": "cuDNN takes it while a recurrent network runs; only the card tells",
    "cuDNN workspace": (
        "the algorithm that cuDNN picks for a convolution takes it while it runs; only the card "
        "tells how much"
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
"""Least capability to the context with kernels loaded lazily: 287,047,680 B with a segment of
20 MiB on CUDA 11.7 (pytorch#86509), 426 MiB on an RTX 6000 Ada with CUDA 13.0
(unsloth-zoo#1053), about 400 MB by the maintainers (pytorch#109888). It grows with
multiprocessors, as each has room for the stacks of its threads."""

_BASE_KERNELS = _mebibytes(2, 20, 60)
_LIBRARIES: Mapping[str, tuple[tuple[str, ...], Range]] = {
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
"""Library to the operators that use it, and the size of its kernels: about what NVML saw beyond
torch's segments in the trainings published with xMem, which cover all of these."""


def context_overhead(card: Card | None, trace: Trace) -> tuple[EstimateTerm, ...]:
    """Return the memory outside of the framework; none for the CPU (``card`` None).

    These are the CUDA context and the kernels, which are loaded on first use
    (``CUDA_MODULE_LOADING=LAZY``, torch's default): more kinds of operators load more.
    """
    if card is None:
        return ()
    context = next(range_ for least, range_ in _CONTEXTS if card.capability >= least)
    capability = ".".join(map(str, card.capability))
    why = (
        f"what the driver keeps for a process on a card of capability {capability}; varies with"
        " driver and CUDA version"
    )
    names = {each.op for each in trace.log.contexts if each.op}
    used = [
        library
        for library, (marks, _) in _LIBRARIES.items()
        if any(mark in name for name in names for mark in marks)
    ]
    kernels = sum((_LIBRARIES[library][1] for library in used), _BASE_KERNELS)
    libraries = ", ".join([trace.framework, *used])
    loaded = f"kernels are loaded as they are first used: those of {libraries}"
    return (
        EstimateTerm(CONTEXT, context, why, apart=True),
        EstimateTerm(KERNELS, kernels, loaded, apart=True),
    )
