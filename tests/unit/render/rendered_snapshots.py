"""Snapshots of every kind, written by hand."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from tensorlens import Difference, Snapshot
from tensorlens.records import Part, SourceLine, UnnamedBlock
from tensorlens.roles import ROLES

sys.path.insert(0, str(Path(__file__).parents[1] / "records"))

from snapshot_builder import T, ledger_of, snapshot_of

KIB = 1024
MIB = 1024**2

UGLY = "a\x1b[31mb\u202ec\r\nd</script><img src=x>&\t記憶體\udcff"


def empty() -> Snapshot:
    return snapshot_of()


def one_tensor() -> Snapshot:
    return snapshot_of([T("x", (256, 1024))])


def all_roles() -> Snapshot:
    return snapshot_of(T(f"t.{role}", (KIB * (n + 1),), role) for n, role in enumerate(ROLES))


def two_devices() -> Snapshot:
    tensors = [
        T("net.weight", (512, 512), "parameter", "cuda:0", born=("train.py", 12)),
        T("net.weight.grad", (512, 512), "gradient", "cuda:0", born=("train.py", 40)),
        T("batch", (64, 3, 32, 32), "input", "cpu"),
        T("shape_only", (10,), device="meta"),
    ]
    cuda = ledger_of(
        "cuda:0",
        2 * MIB,
        source="CUDA caching allocator",
        precision="to 512 B",
        allocated=11 * MIB,
        reserved=20 * MIB,
        driver_used=100 * MIB,
        parts=(
            Part("cached", "free", "largest free block", 6 * MIB, "The largest to be had."),
            Part("other", "context", "context", 50 * MIB, "What CUDA itself takes."),
            Part("other", "others", "other processes", 30 * MIB, "What they take."),
        ),
        explanations={"cached": "Reserved, but not handed out."},
        blocks=(
            UnnamedBlock(0x7000, 8 * MIB, SourceLine("train.py", 12, "step"), what="aten::mm"),
            UnnamedBlock(0x8000, 512 * KIB),
        ),
        block_count=3,
    )
    return snapshot_of(tensors, {"cpu": ledger_of("cpu", 768 * KIB), "cuda:0": cuda})


def unknown_figures() -> Snapshot:
    ledger = ledger_of(
        "mps",
        4 * KIB,
        allocated=None,
        reserved=None,
        driver_total=None,
        missing={
            "allocated": "Metal keeps no count",
            "unnamed": "Metal keeps no count",
            "driver_total": "it shares the machine's",
        },
    )
    return snapshot_of([T("x", (KIB,), device="mps")], {"mps": ledger})


def tied() -> Snapshot:
    return snapshot_of([T("emb.weight", (100, 64), "parameter", also=("head.weight",))])


def views() -> Snapshot:
    return snapshot_of(
        [
            T("small", (1,), storage_nbytes=40 * MIB, held_by="AddBackward0", note="of NumPy"),
            T("small.T", (1,), alias_of="small", offset=7),
            T("wide", (1000, 1000), storage_nbytes=4),
        ]
    )


@cache
def list_of_ten_thousand() -> Snapshot:
    return snapshot_of(T(f"history[{n}]", (), born=("train.py", 9)) for n in range(10_000))


@cache
def many() -> Snapshot:
    """A hundred tensors of 1 to 100 KiB."""
    return snapshot_of(T(f"layer.{n}.weight", (256 * n,), "parameter") for n in range(1, 101))


def hostile() -> Snapshot:
    tensors = [
        T(UGLY, (2,), born=(UGLY, 1), held_by=UGLY, note=UGLY, also=(UGLY + "2",), module=UGLY),
        T("記" * 200 + ".weight", (3,), device=UGLY),
        T("x" * 100_000, (4,), dtype="uint8"),
        T("", (5,)),
        T("<b>bold</b>", (6,)),
    ]
    ledger = ledger_of(
        UGLY,
        12,
        source=UGLY,
        allocated=20,
        missing={},
        blocks=(UnnamedBlock(1, 8, SourceLine(UGLY, 3, UGLY), (SourceLine(UGLY, 4, UGLY),), UGLY),),
        block_count=1,
        parts=(Part("cached", "x", UGLY, None, UGLY),),
        explanations={"cached": UGLY},
    )
    return snapshot_of(tensors, {UGLY: ledger}, process=UGLY, provenance=UGLY, notes=(UGLY,))


def merged() -> Snapshot:
    return Snapshot.merged({"rank0": two_devices(), "rank1": two_devices()})


KINDS = {
    made.__name__: made
    for made in (
        *(empty, one_tensor, all_roles, two_devices, unknown_figures, tied, views),
        *(list_of_ten_thousand, many, hostile, merged),
    )
}


@cache
def changes() -> dict[str, Difference]:
    """From each to the next, from each to itself, and two that show every kind of change."""
    kinds = [made() for made in KINDS.values()]
    found = {
        f"to_{name}": after - before
        for name, before, after in zip(KINDS, [kinds[-1], *kinds], kinds, strict=False)
    }
    found["none"] = kinds[1] - kinds[1]
    found["grown"] = grown()
    return found


def grown() -> Difference:
    before = snapshot_of(
        [
            T("cache", (256,), born=("a.py", 1)),
            T("buffer", (1024,)),
            *(T(f"history[{n}]", (256,)) for n in range(10)),
            T("lost", (512,), "activation"),
        ]
    )
    after = snapshot_of(
        [
            T("cache", (768,), born=("a.py", 1)),
            T("buffer", (512,)),
            *(T(f"history[{n}]", (256,)) for n in range(20)),
        ],
        {"cpu": ledger_of("cpu", 25 * KIB, allocated=30 * KIB)},
    )
    return after - before
