"""Host memory that grows without tensors: which of it, and what is none."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tensorlens.frameworks import UNKNOWN
from tensorlens.frameworks.host import child_processes
from tensorlens.leaks import (
    GraphGrowth,
    HostGrowth,
    HostSample,
    growing_arrays,
    heap_growth,
    host_rates,
    objects_growth,
    pinned_growth,
    steady_rate,
    worker_growth,
)

MIB = 1024**2
DEEPER = GraphGrowth("Run.total", 200.0, "run (global) -> Run.total (attribute)", "detach it")


def samples(heap=None, objects=None, pinned=None, children=None, sizes=None):
    """Samples after step 0, 1, ...: what is not given stays at the same level."""
    length = len(next(each for each in (heap, objects, pinned, children) if each is not None))
    columns = (heap or [MIB] * length, objects or [9] * length, pinned, children, sizes)
    unknown = [UNKNOWN] * length
    rows = zip(range(length), *(each or unknown for each in columns), strict=True)
    return [HostSample(*row) for row in rows]


@pytest.mark.parametrize(
    ("levels", "rate"),
    [
        ([0, 10, 20, 30, 40, 50, 60], 10.0),
        ([5, 5, 25, 25, 45, 45, 65], 10.0),  # every second step
        ([0, 12, 18, 31, 39, 52, 60], 10.0),
        ([0, 60, 60, 60, 60, 60, 60], None),  # a first touch
        ([0, 0, 0, 60, 60, 60, 60], None),  # a jump
        ([0, 40, 50, 55, 58, 59, 60], None),  # it comes to an end
        ([0, 0, 0, 0, 0, 30, 60], None),  # it has only begun
        ([0, 20, 40, 0, 20, 40, 60], None),  # it is cleared
        ([0, 0, 0, 0, 0, 0, 0], None),
        ([60, 50, 40, 30, 20, 10, 0], None),
        ([0, 10, 20], None),  # too few
        ([0, 10, UNKNOWN, 30, 40, 50, 60], None),
    ],
)
def test_only_what_rises_all_the_time_is_steady(levels, rate) -> None:
    assert steady_rate([*enumerate(levels)], 1.0) == rate


def test_a_rise_below_the_floor_is_noise() -> None:
    points = [(step, 10 * step) for step in range(8)]
    assert steady_rate(points, 10.0) == 10.0
    assert steady_rate(points, 10.1) is None


def test_jumps_above_what_is_noise_are_none() -> None:
    # 100 KiB at the beginning of each of two epochs, and 3 KiB after each step
    levels = [3072 * step + 102_400 * (step >= 4) + 102_400 * (step >= 20) for step in range(32)]
    assert steady_rate([*enumerate(levels)], 4096.0) is None
    # (31 * 3,072 + 2 * 102,400) / 31 steps
    assert round(steady_rate([*enumerate(levels)], 2048.0)) == 9678


def test_steps_that_were_not_sampled_count() -> None:
    assert steady_rate([(2, 0), (10, 800), (30, 2800), (32, 3000)], 1.0) == 100.0


def test_tensors_that_are_not_counted_may_be_what_grows() -> None:
    assert heap_growth(50_000.0, counts_tensors=False).text == (
        "host memory grew 48.83 KiB a step: tensors, native libraries, or large bytes/str objects"
    )


def test_heap_growth_without_cause() -> None:
    rates = host_rates(samples(heap=[50_000 * step for step in range(9)]))
    assert (rates.heap, rates.objects) == (50_000.0, None)
    found = heap_growth(50_000.0)
    assert (found.kind, found.bytes_per_step, found.path) == ("host", 50_000.0, "")
    assert found.text == (
        "host memory without tensors grew 48.83 KiB a step: native libraries, or large"
        " bytes/str objects"
    )


def test_arrays_come_first() -> None:
    arrays = "8 of 48.83 KiB each", "log (global) -> list[7]"
    found = heap_growth(50_000.0, 2000.0, arrays, 200.0, DEEPER)
    assert found.text.endswith(" a step: NumPy arrays, 8 of 48.83 KiB each")
    assert found.path == "log (global) -> list[7]"


def test_objects_of_python() -> None:
    rates = host_rates(samples(objects=[2000 * step for step in range(9)]))
    assert (rates.heap, rates.objects) == (None, 2000.0)
    assert objects_growth(2000.0).text == (
        "about 2,000 Python objects a step stay behind, which hold no tensors"
    )
    found = heap_growth(50_000.0, 2000.0, None, 200.0, DEEPER)
    assert found.text.endswith("grew 48.83 KiB a step: with about 2,000 Python objects a step")


def test_own_memory_does_not_count() -> None:
    objects = [2000 * step for step in range(9)]
    # 5 objects for each of 300 lines, and 1000 are noise
    assert host_rates(samples(objects=objects), lines=300).objects is None
    assert host_rates(samples(objects=objects), lines=100).objects == 1500.0


def test_tensor_objects_do_not_count() -> None:
    heap = [20_000 * step for step in range(9)]
    assert host_rates(samples(heap=heap), 3.0).heap == 20_000.0
    assert host_rates(samples(heap=heap), 4.0).heap is None


def test_pinned_memory_growth() -> None:
    (found,) = pinned_growth(samples(pinned=[MIB * step for step in range(9)]))
    assert found.text == "page-locked (pinned) host memory grew 1.00 MiB a step"
    assert found.bytes_per_step == MIB


def test_worker_process_growth() -> None:
    children, sizes = [2 * step for step in range(9)], [2 * MIB * step for step in range(9)]
    (found,) = worker_growth(samples(children=children, sizes=sizes)[2:])
    assert found.text == "worker processes: from 4 to 16 in 6 steps, 2.00 MiB a step"
    assert found.bytes_per_step == 2 * MIB


def test_workers_that_come_and_go_or_stay_are_none() -> None:
    assert worker_growth(samples(children=[0, 4, 4, 4, 4, 4, 4, 4, 4])[2:]) == []
    assert worker_growth(samples(children=[0, 0, 0, 0, 4, 0, 0, 0, 4])[2:]) == []
    assert worker_growth(samples(children=[UNKNOWN] * 9)[2:]) == []


@pytest.mark.skipif(child_processes()[0] == UNKNOWN, reason="children are not listed here")
def test_children_are_counted_while_they_run() -> None:
    before, _ = child_processes()
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:
        child.stdout.readline()
        count, nbytes = child_processes()
        assert count == before + 1
        assert nbytes > MIB
        child.stdin.close()
    assert child_processes()[0] == before


KEPT: list = []


@pytest.fixture
def numpy():
    yield pytest.importorskip("numpy")
    KEPT.clear()


def test_arrays_of_one_size_that_all_steps_left(numpy) -> None:
    KEPT.extend([numpy.zeros(12_345) for _ in range(8)])
    # 98,760 bytes each
    what, path = growing_arrays(HostGrowth(98_800.0, 6, 8))
    assert what == "8 of 96.45 KiB each"
    assert path == "test_host_growth.KEPT (global) -> list[7]"


def test_arrays_in_what_the_collector_does_not_track(numpy) -> None:
    KEPT.extend([{"seen": numpy.zeros(12_345), "step": step} for step in range(8)])
    what, path = growing_arrays(HostGrowth(98_800.0, 6, 8))
    assert path == ""
    assert what == "8 of 96.45 KiB each"


def test_arrays_of_many_sizes_in_one_list(numpy) -> None:
    KEPT.extend([numpy.zeros(10_000 + 777 * step) for step in range(8)])
    # 8 * (8 * 10_000 + 777 * 28) bytes in all, 101,756 a step
    what, path = growing_arrays(HostGrowth(101_756.0, 6, 8))
    assert what == "8 with 794.97 KiB in all"
    assert "KEPT (global) -> list[" in path


def test_one_array_that_grows(numpy) -> None:
    KEPT.append(numpy.zeros(54_321))
    # 434,568 bytes after 8 steps
    what, path = growing_arrays(HostGrowth(54_321.0, 6, 8))
    assert what == "one that is 424.38 KiB now"
    assert path == "test_host_growth.KEPT (global) -> list[0]"


def test_arrays_that_do_not_fit_are_not_blamed(numpy) -> None:
    KEPT.extend([numpy.zeros(12_345) for _ in range(8)])
    assert growing_arrays(HostGrowth(70_000.0, 6, 8)) is None
    # a view has no memory of its own
    KEPT[:] = [KEPT[0][1:] for _ in range(8)]
    assert growing_arrays(HostGrowth(98_760.0, 6, 8)) is None


def test_without_numpy_there_are_none(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy", raising=False)
    assert growing_arrays(HostGrowth(1.0, 6, 8)) is None


def test_growth_with_a_graph_that_stays_is_told_with_its_nodes() -> None:
    # 100 KiB a step beside 200 nodes: 512 B each
    found = heap_growth(102_400.0, nodes=200.0, graph=DEEPER)
    assert (found.kind, found.bytes_per_step) == ("graph", 102_400)
    assert found.text == (
        "host memory without tensors grew 100.00 KiB a step: probably the 200 autograd nodes of "
        "what stays behind, 512 B each"
    )


def test_growth_that_a_graph_cannot_explain_is_not_called_its_own() -> None:
    found = heap_growth(102_400.0, nodes=2.0)
    assert found.kind == "host"
    assert found.text == (
        "host memory without tensors grew 100.00 KiB a step: native libraries, or large bytes/str "
        "objects; in part 2 autograd nodes of what stays behind"
    )


@pytest.mark.parametrize(
    ("nodes", "each"), [(50.0, "2.00 KiB"), (800.0, "128 B"), (49.9, None), (800.1, None)]
)
def test_growth_that_one_deeper_graph_explains_is_told_with_its_holder(nodes, each) -> None:
    # 100 KiB a step: a node takes between 128 B and 2 KiB
    found = heap_growth(102_400.0, graph=replace(DEEPER, nodes_per_step=nodes))
    if each is None:
        assert (found.kind, found.path) == ("host", "")
        return
    assert (found.kind, found.bytes_per_step, found.path) == ("graph", 102_400, DEEPER.path)
    assert found.text == (
        "host memory without tensors grew 100.00 KiB a step: probably the autograd graph of "
        f"Run.total, which grows by {nodes:.0f} nodes a step, {each} each; detach it"
    )
