"""What is advised when memory runs out, of snapshots made by hand."""

from dataclasses import replace

import pytest
from snapshot_builder import T, ledger_of, snapshot_of

from tensorlens.frameworks import KeptGraph, Request
from tensorlens.recording import failure
from tensorlens.recording import failure as module
from tensorlens.records import Part

MIB = 1024**2
FLOATS = MIB // 4


def asking(nbytes=8 * MIB, device="cpu", phase=None, **fields):
    return Request(device, nbytes, "out of memory", phase=phase, **fields)


def told(request, snapshot, *more):
    return [
        (each.nbytes, each.text.split(":")[0])
        for each in failure.remedies(request, snapshot, *more)
    ]


@pytest.fixture(autouse=True)
def unlimited(monkeypatch):
    monkeypatch.setattr(module, "address_limit", lambda: None)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


STEP = (
    T("net.weight", (64, FLOATS), "parameter"),
    T("net.weight.grad", (64, FLOATS), "gradient"),
    T("Adam.net.weight.exp_avg", (64, FLOATS), "optimizer"),
    T("Adam.net.weight.exp_avg_sq", (64, FLOATS), "optimizer"),
    T("net: ReluBackward0.result", (16, FLOATS), "activation"),
    T("x", (4, FLOATS), "input"),
)


def test_gradients_and_activations_largest_first_and_the_optimizer_last():
    assert told(asking(), snapshot_of(STEP)) == [
        (64 * MIB, "gradients"),
        (16 * MIB, "activations for backward"),
        (128 * MIB, "optimizer state"),
    ]


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_gradients_are_needed_from_backward_on(phase):
    assert told(asking(phase=phase), snapshot_of(STEP)) == [
        (16 * MIB, "activations for backward"),
        (128 * MIB, "optimizer state"),
    ]


def test_small_savings_are_omitted():
    small = (T("net.weight", (99, FLOATS), "parameter"), T("g", (1, FLOATS), "gradient"))
    assert told(asking(), snapshot_of(small)) == []


def test_a_list_of_tensors_counts_once_and_a_pair_is_a_batch():
    kept = [T(f"history[{index}]", (2, FLOATS)) for index in range(3)]
    pair = [T(f"batch[{index}]", (8, FLOATS)) for index in range(2)]
    graph = [T("out", (1, FLOATS), "activation")]
    assert told(asking(), snapshot_of([*kept, *pair, *graph])) == [
        (6 * MIB, "history holds 3 tensors"),
        (1 * MIB, "activations for backward"),
    ]


def test_older_graphs_are_told_by_who_holds_them_and_not_twice():
    table = snapshot_of(
        [
            *(T(f"losses[{i}]", (1,), "activation", storage=0x100 + i) for i in range(3)),
            *(T(f"net: Relu.{i}", (4, FLOATS), "activation", storage=0x200 + i) for i in range(3)),
        ]
    )
    graphs = [KeptGraph(10 * i, frozenset({0x200 + i}), (0x100 + i,)) for i in range(3)]
    assert told(asking(), table, graphs) == [
        # two of the three that are alike: the newest is the one being computed
        (8 * MIB, "what older graphs keep for backward, held by losses"),
        (4 * MIB, "activations for backward"),
    ]


def test_tensors_of_the_newest_graph_are_not_freeable():
    table = snapshot_of([T("h", (4, FLOATS), "activation", storage=0x200)])
    graphs = [KeptGraph(1, frozenset({0x200}), (0x200,)), KeptGraph(2, frozenset({0x200}), ())]
    assert told(asking(), table, graphs) == [(4 * MIB, "activations for backward")]


def test_nothing_helps_a_request_that_is_more_than_there_is(monkeypatch):
    snapshot = snapshot_of(STEP)
    huge = asking(1024**3 + 1)
    assert failure.remedies(huge, snapshot) == ()
    assert failure.remarks(huge, snapshot) == (
        "the request alone is more than the machine has (1.00 GiB)",
    )
    assert failure.remarks(asking(1024**3), snapshot) == ()
    monkeypatch.setattr(module, "address_limit", lambda: 512 * MIB)
    assert failure.remedies(asking(512 * MIB + 1), snapshot) == ()
    assert failure.remarks(asking(512 * MIB + 1), snapshot) == (
        "the process may have no more than 512.00 MiB in all (ulimit -v)",
    )
    assert len(failure.remedies(asking(512 * MIB), snapshot)) == 3
    assert failure.remarks(asking(512 * MIB), snapshot) == (
        "this process may have 512.00 MiB of addresses (ulimit -v)",
    )


def fragmented(largest, others=0):
    parts = (
        Part("cached", "largest_free", "largest free block", largest, ""),
        Part("other", "other_processes", "other processes and the driver", others, ""),
    )
    ledger = ledger_of("cuda:0", 100 * MIB, reserved=400 * MIB, parts=parts)
    return snapshot_of([T("w", (100, FLOATS), "parameter", "cuda:0")], {"cuda:0": ledger})


def test_cached_but_in_pieces(monkeypatch):
    request = asking(200 * MIB, "cuda:0", exact=False)
    snapshot = fragmented(150 * MIB)
    assert told(request, snapshot) == [(300 * MIB, "free, but in pieces too small")]
    assert failure.remarks(request, snapshot) == (
        "400.00 MiB reserved, 300.00 MiB of it free in pieces, the largest 150.00 MiB",
    )
    # a piece that fits is in another pool; what is not cached cannot be joined
    assert told(request, fragmented(200 * MIB)) == []
    assert told(replace(request, nbytes=301 * MIB), snapshot) == []
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:true")
    assert told(request, snapshot) == []


def test_memory_of_other_processes():
    request = asking(200 * MIB, "cuda:0")
    found = failure.remedies(request, fragmented(0, 103 * MIB))
    assert found[0].nbytes == 103 * MIB
    assert found[0].text == "other processes and the driver: nvidia-smi lists them"
    # less than a tenth of the device
    assert len(failure.remedies(request, fragmented(0, 102 * MIB))) == len(found) - 1


def test_unknown_device():
    snapshot = snapshot_of(STEP)
    for device in (None, "cuda:3"):
        assert failure.remedies(asking(device=device), snapshot) == ()
        assert failure.remarks(asking(device=device), snapshot) == ()
