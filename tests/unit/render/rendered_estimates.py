"""Estimates of every kind, made by hand, for the tests of the renderers.

The training step runs ``train.py``, whose lines are ``SOURCE`` of the recordings made by hand, on
a batch of 8. Two segments of 20 MiB are all that is reserved. With sizes in MiB:

    row  what                                          allocated after it
    1    4, fc1.weight (1024, 1024), in the setup      4
    2    1, the batch (8, 32768), in the setup         5
    3    8, cuBLAS workspace, in step 1                13
    4    2, line 2 (fc1: aten::addmm)                  15
    6    2, its gradient, in backward                  17
    7    4, fc1.weight.grad                            21
    8 9  frees of rows 4 and 6                         17
    10   4, exp_avg, in the optimizer                  21
    11   4, exp_avg_sq, in the optimizer               25
    12   2, line 2, in step 2                          27
    13   2 in a block of 2.5, its gradient             29.5
    14   4, aten::mm in backward                       33.5, the peak
    15   its free, in the same operator                29.5
    16   free of row 12                                27.5
    17   free of row 13                                25
"""

from __future__ import annotations

from typing import Any

from rendered_recordings import HOSTILE, MS, SOURCE, Step, empty

from tensorlens import Estimate, Recording
from tensorlens.planning import H100, Caution
from tensorlens.planning.estimate import EstimatedStep, EstimateTerm, Range, result
from tensorlens.records import (
    ALLOC,
    FREE,
    SEGMENT_ALLOC,
    Context,
    EventLog,
    Label,
    Mark,
    Origin,
    Segment,
    SourceLine,
)

MIB = 1024**2
GIB = 1024**3
GPU = "cuda:0"
PEAK = 67 * MIB // 2

WORKSPACE = EstimateTerm("cuBLAS workspace", Range.exactly(8 * MIB), "one handle on this card")
OUTSIDE = (
    EstimateTerm(
        result.CONTEXT,
        Range(300 * MIB, 400 * MIB, 500 * MIB),
        "measured on cards like it",
        apart=True,
    ),
    EstimateTerm(
        "loaded kernels", Range(0, 10 * MIB, 50 * MIB), "loaded when first used", apart=True
    ),
)


def training_log(name: str = "fc1.weight", filename: str = "train.py") -> EventLog:
    log = EventLog()
    at = Step(log, filename)
    place = iter(range(0, 10**9, 16 * MIB))

    def alloc(size: int, stack: int, context: Context | None, label: Label | None = None) -> int:
        row = log.append(ALLOC, GPU, next(place), size * MIB, len(log) * MS, stack, context)
        if label is not None:
            log.name(row, label)
        return row

    def free(row: int, stack: int, context: Context | None = None) -> None:
        log.append(FREE, GPU, log.address[row], log.size[row], len(log) * MS, stack, context)

    def mark(text: str) -> None:
        log.marks.append(Mark(text, len(log), len(log) * MS))

    addmm = Context(op="aten::addmm", grad=True)
    library = Context(op=WORKSPACE.name, outer="aten::addmm")
    mm = Context(op="aten::mm", node="AddmmBackward0", forward=at.forward)
    ones = Context(op="aten::expand", node="SumBackward0", forward=at.loss)
    step = Context(op="aten::_foreach_lerp_")

    def state(slot: str) -> Label:
        return Label(f"AdamW.{name}.{slot}", "optimizer", "float32", (1024, 1024))

    log.append(SEGMENT_ALLOC, GPU, 0, 20 * MIB, 0)
    alloc(4, -1, None, Label(name, "parameter", "float32", (1024, 1024)))
    alloc(1, -1, None, Label("step(): x", "input", "float32", (8, 32768)))
    mark("step 1")
    alloc(8, -1, library)
    first = alloc(2, at.forward, addmm)
    log.append(SEGMENT_ALLOC, GPU, 1 << 40, 20 * MIB, 5 * MS)
    second = alloc(2, at.backward, ones)
    alloc(4, at.backward, mm, Label(f"{name}.grad", "gradient", "float32", (1024, 1024)))
    free(first, at.backward)
    free(second, at.backward)
    alloc(4, at.optimizer, step, state("exp_avg"))
    alloc(4, at.optimizer, step, state("exp_avg_sq"))
    mark("step 2")
    first = alloc(2, at.forward, addmm)
    second = alloc(2, at.backward, ones)
    log.held[second] = 5 * MIB // 2
    free(alloc(4, at.backward, mm), at.backward, mm)
    free(first, at.backward)
    free(second, at.backward)
    mark("end")
    log.segments += [Segment(GPU, 0, 20 * MIB), Segment(GPU, 1 << 40, 20 * MIB)]
    log.segments_known = True
    log.sources[filename] = SOURCE
    return log


def training(**changes: Any) -> Estimate:
    given: dict[str, Any] = {
        "device": GPU,
        "card": H100,
        "allocated": Range.exactly(PEAK),
        "reserved": Range(40 * MIB, 40 * MIB, 42 * MIB),
        "least_capacity": Range(34 * MIB, 36 * MIB, 38 * MIB),
        "steps": (
            EstimatedStep("setup", 5 * MIB, 20 * MIB, 5 * MIB, 20 * MIB),
            EstimatedStep("step 1", 25 * MIB, 40 * MIB, 25 * MIB, 40 * MIB),
            EstimatedStep("step 2", PEAK, 40 * MIB, 25 * MIB, 40 * MIB),
        ),
        "terms": (WORKSPACE, *OUTSIDE),
        "recording": Recording(training_log(), Origin(provenance="estimated")),
        "peak_row": 14,
        "capacity": GIB,
        "batch": 8,
        "versions": {"torch": "2.13.0"},
        "program": "train.py:make_step",
    }
    return Estimate(**{**given, **changes})


def tight() -> Estimate:
    # 446 MiB likely, 588 at most
    return training(capacity=500 * MIB)


def too_large() -> Estimate:
    return training(capacity=400 * MIB)


def unasked() -> Estimate:
    return training(capacity=None, batch=None, settings="expandable_segments:True")


def warned() -> Estimate:
    line = SourceLine("train.py", 3, "step")
    return training(
        warnings=(
            Caution("a tensor without data was asked for its value: 0 was answered", line),
            Caution("a kernel of one's own is not known"),
        )
    )


def nothing() -> Estimate:
    none = Range.exactly(0)
    return Estimate(GPU, H100, none, none, none, (), (), empty(), -1)


def hostile() -> Estimate:
    """Every text that a user can choose is hostile."""
    exact = Range.exactly(PEAK)
    return training(
        device=GPU,
        terms=(
            EstimateTerm(HOSTILE, exact, HOSTILE),
            EstimateTerm(HOSTILE, exact, HOSTILE, apart=True),
        ),
        recording=Recording(training_log(HOSTILE, HOSTILE), Origin(process=HOSTILE)),
        warnings=(Caution(HOSTILE, SourceLine(HOSTILE, 1, HOSTILE)),),
        settings=HOSTILE,
        program=HOSTILE,
        versions={HOSTILE: HOSTILE},
        steps=(EstimatedStep(HOSTILE, 1, 1, 1, 1),),
    )


KINDS = {
    "training": training,
    "tight": tight,
    "too large": too_large,
    "unasked": unasked,
    "warned": warned,
    "hostile": hostile,
}
"""Those with something in them."""

ALL = {**KINDS, "nothing": nothing}
