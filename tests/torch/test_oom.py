"""An allocation that fails in a recorded or profiled region, or anywhere after explain_oom()."""

import gc

import pytest
import torch
from torch import nn

import tensorlens
from tensorlens.frameworks.torch import failed_request, graphs_kept
from tensorlens.heap import KEPT_BY_TRACEBACK
from tensorlens.recording import annotation
from tensorlens.recording import annotation as oom
from tensorlens.recording import record as backward

HUGE = 1 << 45
"""Floats that no machine has: 2**47 bytes."""
ASKED = "tensorlens: out of memory: Tried to allocate 128.00 TiB (140,737,488,355,328 B) on cpu"


@pytest.fixture(autouse=True)
def fresh_budget(monkeypatch):
    monkeypatch.setattr(oom, "_explanations", 0)
    gc.collect()


def caught(function, *given):
    try:
        function(*given)
    except (RuntimeError, MemoryError) as error:
        return error
    raise AssertionError("nothing was raised")


def note(error):
    (text,) = getattr(error, "__notes__", [])
    return text.splitlines()[1:]


def ask():
    return torch.empty(HUGE)  # asked here


def line_of(function, offset):
    return f"{__file__}:{function.__code__.co_firstlineno + offset} in {function.__qualname__}"


def test_oom_in_a_recording():
    def region():
        with tensorlens.record():
            ask()

    lines = note(caught(region))
    assert lines[0] == ASKED
    assert lines[1] == f"  by         {line_of(ask, 1)}"
    assert lines[2] == "               return torch.empty(HUGE)  # asked here"
    assert lines[3] == "  in         aten::empty"


class Narrow(nn.Module):
    def forward(self, x):
        # a view of a view takes nothing; its backward makes all that the first one shows
        return x.expand(HUGE)[:1]


def test_in_backward_a_recording_names_the_forward_line_the_module_and_the_operator():
    def region():
        with tensorlens.record():
            net(torch.ones(1, requires_grad=True)).backward()

    net = nn.Sequential(Narrow())
    lines = note(caught(region))
    assert lines[0] == ASKED
    assert lines[1] == f"  by         {line_of(Narrow.forward, 2)}"
    assert lines[2] == "               return x.expand(HUGE)[:1]"
    assert lines[3].startswith("  in         backward, module ")
    assert ".0, aten::" in lines[3]


def test_in_backward_without_a_recording_it_is_the_line_that_ran_backward():
    def region():
        out = nn.Sequential(Narrow())(torch.ones(1, requires_grad=True))
        out.backward()

    found = annotation.explain(caught(region))
    assert found is not None
    assert str(found.request.line) == line_of(region, 2)
    assert (found.request.phase, found.request.nbytes) == ("backward", HUGE * 4)


@pytest.mark.parametrize("way", ["decorator", "block", "profiler"])
def test_oom_in_a_profiled_region(way, capsys):
    def decorated():
        tensorlens.LineProfiler()(ask)()

    def block():
        with tensorlens.profile:
            ask()

    def profiler():
        with tensorlens.LineProfiler(ask):
            ask()

    lines = note(caught({"decorator": decorated, "block": block, "profiler": profiler}[way]))
    assert lines[:2] == [ASKED, f"  by         {line_of(ask, 1)}"]
    tensorlens.profile.clear()


def test_nested_regions_explain_once_and_what_is_handled_inside_costs_nothing(monkeypatch):
    looked = []
    monkeypatch.setattr(oom, "_report", lambda *given, **options: looked.append(1))
    profiler = tensorlens.LineProfiler()

    @profiler
    def inner():
        ask()

    @profiler
    def outer(handles):
        try:
            inner()
        except RuntimeError:
            if not handles:
                raise

    outer(True)
    assert not looked
    caught(outer, False)
    assert len(looked) == 1


def test_names_do_not_say_that_the_error_on_its_way_keeps_them():
    def train():
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        adam = torch.optim.Adam(net.parameters())
        net(torch.randn(8, 64)).sum().backward()
        adam.step()
        ask()

    def region():
        with tensorlens.record():
            train()

    error = caught(region)
    text = "\n".join(note(error))
    assert "net[0,2].weight" in text and "Adam.net[0,2].weight.exp_avg" in text
    assert KEPT_BY_TRACEBACK not in text
    # which the census does say, with the words that are looked for
    assert KEPT_BY_TRACEBACK in "\n".join(tensorlens.MemReporter().snapshot().tensors.names.texts)


def test_older_graphs_that_a_list_holds():
    def train():
        layer = nn.Linear(256, 256)
        losses = [layer(torch.randn(1024, 256)).tanh().sum() for _ in range(3)]
        ask_little()
        return losses

    def ask_little():
        raise MemoryError

    found = annotation.explain(caught(train))
    assert found is not None
    older = next(each for each in found.remedies if "older graphs" in each.text)
    # each keeps what the layer was given and what tanh gave, of 1 MiB both; the last of them is
    # what is being computed
    assert older.nbytes == 2 * (2 << 20)
    assert older.text.partition(":")[0] == "what older graphs keep for backward, held by " + (
        "test_older_graphs_that_a_list_holds.train()"
    )
    kept = next(each for each in found.remedies if each.text.startswith("activations"))
    # the sums themselves are the list's
    assert kept.nbytes == 2 << 20


def test_graphs_of_different_steps_are_apart_though_they_share_parameters():
    layer = nn.Linear(8, 8)
    before = {graph.newest for graph in graphs_kept()}
    x = torch.randn(2, 8)
    first = layer(x).exp()
    second = layer(x).exp()
    third = second * 2
    found = [graph for graph in graphs_kept() if graph.newest not in before]
    assert len(found) == 2
    assert [first.data_ptr() in graph.saved for graph in found] == [True, False]
    assert [second.data_ptr() in graph.saved for graph in found] == [False, True]
    assert third.data_ptr() in found[1].holders
    third.sum().backward()
    first.sum().backward()
    assert not [graph for graph in graphs_kept() if graph.newest not in before]


CUDA = (
    "CUDA out of memory. Tried to allocate {}. GPU 3 has a total capacity of 79.15 GiB of which "
    "1.03 GiB is free. Process 4711 has 78.11 GiB memory in use. Of the allocated memory 70.00 GiB "
    "is allocated by PyTorch, and 5.50 GiB is reserved by PyTorch but unallocated."
)


class ArrayMemoryError(MemoryError):
    """As NumPy's, which has the shape and the type of the array."""

    shape = (1000, 1000)
    dtype = torch.float64


@pytest.mark.parametrize(
    ("error", "device", "nbytes", "exact"),
    [
        (torch.OutOfMemoryError(CUDA.format("2.00 GiB")), "cuda:3", 2 << 30, False),
        (torch.OutOfMemoryError(CUDA.format("512 bytes")), "cuda:3", 512, True),
        (
            torch.OutOfMemoryError("XPU out of memory. Tried to allocate 1.50 MiB. GPU 0 has"),
            *("xpu:0", 3 << 19, False),
        ),
        (
            RuntimeError(
                "MPS backend out of memory (MPS allocated: 1.00 GiB, other allocations: 0 bytes, "
                "max allowed: 9.07 GiB). Tried to allocate 5.00 GiB on private pool."
            ),
            *("mps", 5 << 30, False),
        ),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 4000 bytes. Error code 12 (Cannot allocate memory)"
            ),
            *("cpu", 4000, True),
        ),
        (RuntimeError("unable to mmap 64 bytes from file </x>: Cannot allocate memory (12)"),
            *("cpu", 64, True)),
        (RuntimeError("CUDA error: out of memory"), None, None, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            *(None, None, True)),
        # there was no room for the rest
        (RuntimeError("[enforce fail a"), "cpu", None, True),
        (MemoryError(), "cpu", None, True),
        (MemoryError("std::bad_alloc"), "cpu", None, True),
        (ArrayMemoryError("Unable to allocate 7.63 MiB"), "cpu", 8_000_000, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)  # fmt: skip
def test_requests_read_from_error_messages(error, device, nbytes, exact):
    request = failed_request(error)
    assert request is not None
    assert (request.device, request.nbytes, request.exact) == (device, nbytes, exact)


def test_numpys_own_error():
    numpy = pytest.importorskip("numpy")
    request = failed_request(caught(numpy.empty, (1 << 44, 4), "float32"))
    assert request is not None and request.nbytes == 1 << 48


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError(""),
        RuntimeError("[enforce fail at another_file.cpp:1] x"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ValueError("out of memory"),
        RecursionError(),
        NotImplementedError(),
    ],
)
def test_errors_of_another_kind(error):
    assert failed_request(error) is None


def test_an_accelerators_size_is_said_to_be_rounded():
    error = caught(lambda: raising(torch.OutOfMemoryError(CUDA.format("2.00 GiB"))))
    assert str(annotation.explain(error)).startswith(
        "tensorlens: out of memory: Tried to allocate about 2.00 GiB on cuda:3\n"
    )


def raising(error):
    raise error


def test_the_line_table_has_backward_where_a_recording_was():
    backward._total = backward.BackwardLines()
    profiler = tensorlens.LineProfiler()
    layer = nn.Linear(16, 32)

    @profiler
    def step(x):
        h = layer(x)
        y = h.exp()
        return y.sum()

    def column():
        (function,) = profiler.result().functions
        return [line.memory["cpu"].backward for line in function.lines if line.memory]

    x = torch.randn(8, 16)
    step(x).backward()
    assert column() == [None, None, None]
    layer.zero_grad()
    with tensorlens.record():
        step(x).backward()
        # of a recording that is on; by hand: the weight's gradient and the bias's; what exp gets
        # is sum's expanded gradient, times its result; ones_like of the sum
        during = column()
    assert during[:2] == [16 * 32 * 4 + 32 * 4, 8 * 32 * 4]
    assert column() == during


def test_failure_to_add_up_backward_is_contained(monkeypatch, capsys):
    def fail(*given):
        raise ZeroDivisionError

    tensorlens.LineProfiler().result()
    monkeypatch.setattr(backward, "backward_calls", fail)
    with tensorlens.record() as recording:
        kept = torch.ones(1000)
    assert recording.peak("cpu").bytes >= kept.nbytes
    assert "lack the backward pass of a recording: ZeroDivisionError" in capsys.readouterr().err
