"""Leak reports of every kind, written by hand."""

from __future__ import annotations

from rendered_snapshots import UGLY

from tensorlens import LeakReport
from tensorlens.leaks import (
    Balance,
    BelowLine,
    Certainty,
    Example,
    Growth,
    GrowthKind,
    Leak,
    LeakKind,
)
from tensorlens.records import Reference, ReferencePath, SourceLine

KIB = 1024


def path(*texts: str, is_cut: bool = False) -> ReferencePath:
    return ReferencePath(tuple(Reference("item", text) for text in texts), is_cut)


def report(*leaks: Leak, **changes) -> LeakReport:
    given = {
        "others": (),
        "steps": 6,
        "warmup": 2,
        "allocated": {"cpu": tuple(KIB * n for n in range(1, 9))},
        "verdict": "no leak: nothing stays behind in any of 5 steps",
    }
    return LeakReport(leaks, **{**given, **changes})


LOSSES = Leak(
    born=SourceLine("train.py", 12, "Trainer.step"),
    tensors_per_step=1.0,
    bytes_per_step=12 * KIB + 4.0,
    path="trainer (global) -> Trainer.history (attribute) -> list[7] -> grad_fn -> "
    "3 saved activations",
    paths=(
        path(
            "trainer (global)",
            "Trainer.history (attribute)",
            "list[7]",
            "grad_fn",
            "3 saved activations",
        ),
        path("log (closure)", "dict['loss']"),
    ),
    role="activation",
    device="cpu",
    example=Example("trainer.history[7]", "float32", (), 4, 4, "MeanBackward0", 1, 12 * KIB, 3),
    certainty=Certainty.CERTAIN,
    reason="each of 5 steps left the same number of tensors behind",
    advice="store loss.item() instead of the tensor, which keeps the autograd graph of its step",
    source="        loss = criterion(self.net(batch), target)\n",
)

UNSEEN = Leak(
    born=None,
    tensors_per_step=1.5,
    bytes_per_step=1536.0,
    path="",
    paths=(),
    role="other",
    device="cuda:0",
    example=None,
    certainty=Certainty.LIKELY,
    reason="one step in 2 leaves the same behind, 3 times in 6 steps",
)

CUT_VIEW = Leak(
    born=SourceLine("train.py", 30, "main"),
    tensors_per_step=0.0,
    bytes_per_step=20.0,
    path="list[3]",
    paths=(path("list[3]", is_cut=True),),
    role="other",
    device="cpu",
    example=Example("", "float32", (2, 3), 24, 4 * KIB, None, 0),
    certainty=Certainty.CERTAIN,
    reason="it was 20 bytes larger after each of 5 steps",
)

GARBAGE = Growth(
    GrowthKind.GARBAGE,
    "1 tensor, 400 B a step, made at train.py:27 in step: garbage that waited for the collector, "
    "a cycle: Node.me -> Node",
    400.0,
    "Node.me -> Node",
)
FILLING = Growth(
    GrowthKind.FILLING,
    "1 tensor, 28 B a step, made at train.py:30 in step: deque[6] is filling up, it ends at 100 "
    "items",
    28.0,
    "window (global) -> deque[6]",
)


def hostile() -> LeakReport:
    leak = Leak(
        born=SourceLine(UGLY, 1, UGLY),
        tensors_per_step=1e9,
        bytes_per_step=1e18,
        path=UGLY,
        paths=(path(UGLY, UGLY * 20, UGLY), path("x" * 300)),
        role=UGLY,
        device=UGLY,
        example=Example(UGLY * 20, UGLY, (1,) * 40, 1, 2, UGLY, 10**9, 3, 1),
        certainty=Certainty.LIKELY,
        reason=UGLY,
        advice=UGLY,
        source=UGLY * 10,
        below=(BelowLine(SourceLine(UGLY, 1, UGLY), 1e18, 1e9, UGLY, UGLY),),
    )
    return report(
        leak,
        others=(Growth(GrowthKind.HOST, UGLY, 0.0, UGLY + " -> " + UGLY, UGLY),),
        allocated={UGLY: (1, 2, -1), "cpu": ()},
        verdict=UGLY,
        notes=(UGLY,),
        provenance=UGLY,
        balance={UGLY: Balance(1, 10**18, 10**18, 1, 2, 3, 4, 10)},
    )


QUEUE = Leak(
    born=SourceLine("train.py", 40, "produce"),
    tensors_per_step=2.0,
    bytes_per_step=5.0 * KIB,
    path="waiting (global) -> Queue[12]",
    paths=(path("waiting (global)", "Queue[12]"),),
    role="activation",
    device="cpu",
    example=None,
    certainty=Certainty.CERTAIN,
    reason="each is freed some steps later, but 2 were there and 24 are now",
    source="    waiting.put(net(batch).mean())\n",
    kind=LeakKind.QUEUE,
    below=tuple(
        BelowLine(SourceLine("net.py", line, "forward"), KIB / 2, 0.5, "activation", f"x = {line}")
        for line in range(1, 11)
    ),
)


KINDS = {
    "empty": lambda: report(steps=0, warmup=0, allocated={}, verdict="too few steps to tell"),
    "healthy": report,
    "leak": lambda: report(LOSSES, verdict="leak: 1 tensor and 12.00 KiB stay behind in each step"),
    "several": lambda: report(
        LOSSES,
        UNSEEN,
        CUT_VIEW,
        others=(GARBAGE, FILLING),
        allocated={"cpu": (0,) * 8, "cuda:0": (KIB, 4 * KIB), "cuda:1": (-1, -1)},
        verdict="leak: about 3 tensors and 13.52 KiB stay behind in each step",
        notes=("judged after step 8; the program made 20",),
    ),
    "queue": lambda: report(
        QUEUE,
        balance={"cpu": Balance(5, 26 * KIB, 25 * KIB, 0, 5 * KIB, 0, 0, 4 * KIB)},
        verdict="queue that fills: 2 tensors and 5.00 KiB stay behind in each step",
    ),
    "hostile": hostile,
}
