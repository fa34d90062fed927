"""Ledgers of accelerators from segments written by hand, random ones, and strangers' snapshots."""

import os
import pickle
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tensorlens.records import BALANCE, FIGURES, SourceLine, TensorTable

torch = pytest.importorskip("torch")
from tensorlens.frameworks.torch import (  # noqa: E402
    Accelerators,
    cuda_blocks,
    device_ledgers,
)

MIB, GIB = 1 << 20, 1 << 30
SNAPSHOTS = Path(__file__).parents[3] / "shared" / "data" / "snapshots"
BASE = 0x7F00_0000_0000


def forbidden(*_args, **_options):
    raise AssertionError("the ledger must not ask for this")


# -- what stands for a GPU


def segment(address, *blocks, device=0, pool=(0, 0), total=None, **more):
    """A segment of ``(state, size)`` or ``(state, size, more keys)``, one after another."""
    found, start = [], address
    for state, size, *extra in blocks:
        block = {"address": start, "size": size, "requested_size": size, "state": state}
        found.append({**block, "frames": [], **(extra[0] if extra else {})})
        start += size
    return {
        "device": device,
        "address": address,
        "total_size": start - address if total is None else total,
        "segment_pool_id": pool,
        "is_expandable": False,
        "blocks": found,
        **more,
    }


USED, FREE, WAITS = "active_allocated", "inactive", "active_pending_free"


def cuda(
    segments=(),
    *,
    used=(0,),
    initialised=True,
    forked=False,
    stats=(0, 0),
    free=15 * GIB,
    total=16 * GIB,
    backend="native",
    hip=None,
    capturing=False,
    traces=True,
):
    """A CUDA build whose peak resets and initialising functions raise."""

    def usable():
        assert initialised and not forked, "the ledger would have initialised the device"

    def memory_stats(index):
        usable()
        if isinstance(stats, Exception):
            raise stats
        return {
            "allocated_bytes": {"all": {"current": stats[0], "peak": stats[0] + 7}},
            "reserved_bytes": {"all": {"current": stats[1], "peak": stats[1]}},
        }

    def mem_get_info(index):
        usable()
        assert index in used, "the driver would have made a context"
        if isinstance(free, Exception):
            raise free
        return free, total

    def is_current_stream_capturing():
        usable()
        assert 0 in used, "the current device would have got a context"
        return capturing

    def snapshot(include_traces=True):
        usable()
        assert not include_traces
        if isinstance(segments, Exception):
            raise segments
        return list(segments)

    def old_snapshot():
        return list(segments)

    c_module = SimpleNamespace(
        _cuda_memoryStats=memory_stats,
        _cuda_resetPeakMemoryStats=forbidden,
        _cuda_hasPrimaryContext=lambda index: index in used,
        _cuda_getAllocatorBackend=lambda: backend,
        _cuda_getDevice=lambda: 0,
        _cuda_init=forbidden,
    )
    module = SimpleNamespace(
        is_initialized=lambda: initialised and not forked,
        _is_in_bad_fork=lambda: forked,
        device_count=lambda: 4,
        _device_count_nvml=lambda: 4,
        memory_snapshot=snapshot if traces else old_snapshot,
        mem_get_info=mem_get_info,
        get_allocator_backend=lambda: backend,
        is_current_stream_capturing=is_current_stream_capturing,
        get_device_properties=lambda index: SimpleNamespace(uuid=f"uuid-{index}"),
        empty_cache=forbidden,
        synchronize=forbidden,
        reset_peak_memory_stats=forbidden,
        _lazy_init=forbidden,
    )
    return SimpleNamespace(
        _C=c_module, cuda=module, version=SimpleNamespace(hip=hip), __version__="9.9+cu999"
    )


def table_of(*storages, aliases=()):
    """A table of ``(device, address, bytes)``; ``aliases`` are rows that another one counts."""
    table = TensorTable()
    for device, address, nbytes in storages:
        if device not in table.devices:
            table.devices.append(device)
        table.device.append(table.devices.index(device))
        table.storage.append(address)
        table.storage_nbytes.append(nbytes)
        table.alias.append(0 if len(table.alias) in aliases else -1)
    return table


def ledgers(torch_, *storages, **options):
    return device_ledgers(table_of(*storages, **options), Accelerators(torch_))


def terms(ledger):
    return {(term.of, term.key): term.nbytes for term in ledger.parts}


def check(ledger):
    """What holds for every ledger: it balances, explains itself, and says what it lacks."""
    for total, parts in BALANCE:
        figures = [getattr(ledger, name) for name in (total, *parts)]
        if None not in figures:
            assert figures[0] == sum(figures[1:]), total
            assert min(figures) >= 0
    for name in FIGURES:
        assert ledger.explanations[name] and "\n" not in ledger.explanations[name]
        assert (getattr(ledger, name) is None) == (name in ledger.missing), name
    for term in ledger.parts:
        assert term.nbytes is not None or ledger.missing[term.key]
        assert term.of in FIGURES and term.explanation
    assert len(ledger.blocks) == min(ledger.block_count, cuda_blocks.MAX_BLOCKS)
    assert ledger.source and ledger.precision


class Nvml:
    """The part of nvidia-ml-py that the ledger asks."""

    class NVMLError(Exception):
        pass

    def __init__(self, processes, prefix="GPU-"):
        self.processes, self.prefix, self.open = processes, prefix, 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert self.open
        if not uuid.startswith(self.prefix):
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        assert handle == f"{self.prefix}uuid-0"
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]


@pytest.fixture
def nvml(monkeypatch):
    """Installs NVML with these processes; without a call there is none."""
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def install(*processes, **options):
        module = Nvml(processes, **options)
        monkeypatch.setitem(sys.modules, "pynvml", module)
        return module

    return install


# -- CUDA, block by block

SMALL, EMPTY, LARGE, GRAPH = (BASE + number * GIB for number in range(4))


def layout():
    return [
        # 512 + 4,096 + 1,024 + 2,091,520 = 2 MiB
        segment(SMALL, (USED, 512), (USED, 4096), (WAITS, 1024), (FREE, 2_091_520)),
        segment(EMPTY, (FREE, 20 * MIB)),
        # 8,519,680 + 12,451,840 = 20 MiB
        segment(LARGE, (USED, 8_519_680), (FREE, 12_451_840)),
        segment(GRAPH, (USED, 1024), (FREE, 2_096_128), pool=(1, 0)),
        segment(BASE + 9 * GIB, (USED, 512), (FREE, 2 * MIB - 512), device=1),
    ]


TENSORS = (
    ("cuda:0", SMALL, 4),
    ("cuda:0", SMALL + 512, 4000),
    ("cuda:0", GRAPH, 1000),
    ("cpu", SMALL + 512, 64),
    ("meta", 0, 1 << 40),
)


def test_every_figure_and_term_of_a_layout(nvml):
    reserved = 2 * 2 * MIB + 2 * 20 * MIB
    library = nvml((1, 5), (os.getpid(), reserved + 100_000_000))
    torch_ = cuda(layout(), free=17_000_000_000, total=17_179_869_184)
    found = ledgers(torch_, *TENSORS)
    assert list(found) == ["cuda:0"]
    ledger = found["cuda:0"]
    check(ledger)
    assert library.open == 0
    assert ledger.device == "cuda:0"
    assert ledger.allocated == 512 + 4096 + 8_519_680 + 1024 == 8_525_312
    assert ledger.named == 512 + 4096 + 1024 == 5632
    assert ledger.unnamed == 8_519_680
    assert ledger.reserved == reserved == 46_137_344
    assert ledger.cached == 37_612_032
    assert ledger.driver_total == 17_179_869_184
    assert ledger.driver_used == 179_869_184
    assert ledger.other == 133_731_840
    assert terms(ledger) == {
        ("named", "rounding"): 508 + 96 + 24,
        ("cached", "largest_free"): 20 * MIB,
        ("cached", "releasable"): 20 * MIB,
        ("cached", "inactive_split"): 2_091_520 + 12_451_840,
        ("cached", "private_free"): 2_096_128,
        ("cached", "waiting"): 1024,
        ("reserved", "private_pools"): 2 * MIB,
        ("other", "context"): 100_000_000,
        ("other", "other_processes"): 33_731_840,
    }
    cached = [
        n for (of, key), n in terms(ledger).items() if of == "cached" and "largest" not in key
    ]
    assert sum(cached) == ledger.cached
    assert dict(ledger.missing) == {}
    assert ledger.block_count == 1
    (block,) = ledger.blocks
    assert (block.address, block.nbytes, block.born, block.stack) == (LARGE, 8_519_680, None, ())
    assert block.what == "has the size of a cuBLAS workspace"
    assert (ledger.source, "512 B" in ledger.precision) == ("CUDA caching allocator", True)


def test_each_device_in_use_has_a_ledger_and_the_snapshot_is_taken_once():
    torch_ = cuda(layout(), used=(0, 1, 3))
    taken = []
    snapshot = torch_.cuda.memory_snapshot
    torch_.cuda.memory_snapshot = lambda **options: (taken.append(1), snapshot(**options))[1]
    found = ledgers(torch_, *TENSORS)
    assert list(found) == ["cuda:0", "cuda:1", "cuda:3"]
    for ledger in found.values():
        check(ledger)
    assert taken == [1]
    assert (found["cuda:1"].allocated, found["cuda:1"].reserved) == (512, 2 * MIB)
    assert (found["cuda:3"].allocated, found["cuda:3"].named, found["cuda:3"].cached) == (0, 0, 0)


def test_a_torch_that_cannot_leave_the_trace_out():
    found = ledgers(cuda(layout(), traces=False))["cuda:0"]
    assert found.allocated == 8_525_312


def test_storages_are_matched_by_range_and_no_block_counts_twice():
    torch_ = cuda([segment(BASE, (USED, 4096), (USED, 4096), (USED, 4096), (FREE, 4096))])
    ledger = ledgers(
        torch_,
        ("cuda:0", BASE + 1024, 512),  # one storage inside a block
        ("cuda:0", BASE + 1280, 512),  # another that shares 256 B with it
        ("cuda:0", BASE + 4096 + 4000, 200),  # and one over the border of two blocks
        ("cuda:0", BASE + 1024, 512),  # an alias
        ("cuda:0", 0, 0),
        aliases=(3,),
    )["cuda:0"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (12_288, 12_288, 0)
    assert terms(ledger)["named", "rounding"] == 12_288 - 768 - 200
    assert ledger.block_count == 0
    ledger = ledgers(torch_, ("cuda:0", BASE + 4096, 4096))["cuda:0"]
    assert (ledger.named, ledger.unnamed, ledger.block_count) == (4096, 8192, 2)
    assert terms(ledger)["named", "rounding"] == 0


def test_memory_that_is_not_the_allocators_or_was_freed_is_not_named():
    torch_ = cuda([segment(BASE, (USED, 512), (FREE, 2 * MIB - 512))])
    ledger = ledgers(
        torch_,
        ("cuda:0", BASE, 512),
        ("cuda:0", BASE + 512, 512),  # freed since the table was built
        ("cuda:0", BASE - 300, 300),  # of another process
        ("cuda:0", BASE + 2 * MIB, 700),
    )["cuda:0"]
    check(ledger)
    assert (ledger.named, ledger.unnamed) == (512, 0)
    assert terms(ledger)["other", "outside"] == 1000


def test_expandable_segments_may_give_pages_back():
    for expandable in (False, True):
        blocks = (USED, 512), (FREE, 40 * MIB - 512)
        torch_ = cuda([segment(BASE, *blocks, is_expandable=expandable)])
        (split,) = (t for t in ledgers(torch_)["cuda:0"].parts if t.key == "inactive_split")
        assert split.nbytes == 40 * MIB - 512
        assert ("pages" in split.explanation) == expandable


# -- unnamed blocks


def frame(filename, line, name):
    return {"filename": filename, "line": line, "name": name}


def test_an_unnamed_block_is_born_at_the_innermost_frame_of_the_users():
    frames = [
        frame("??", 0, "torch::unwind::unwind()"),
        frame("ceval.c", 4181, "_PyEval_EvalFrameDefault"),
        frame(f"{Path(torch.__file__).parent}/nn/modules/linear.py", 125, "forward"),
        frame("/x/lib/python3.11/site-packages/other/layer.py", 7, "forward"),
        frame(os.__file__, 5, "walk"),
        frame("<frozen runpy>", 198, "_run_module_as_main"),
        frame("<eval_with_key>.0", 9, "forward"),
        frame("/home/me/train.py", 31, "step"),
        frame("/home/me/train.py", 50, "<module>"),
    ]
    torch_ = cuda([segment(BASE, (USED, 512, {"frames": frames}))])
    (block,) = ledgers(torch_)["cuda:0"].blocks
    assert block.born == SourceLine("/home/me/train.py", 31, "step")
    assert block.stack == (SourceLine("/home/me/train.py", 50, "<module>"),)
    assert block.what is None


@pytest.mark.parametrize("typed", ["<stdin>", "<ipython-input-3-aa>", "/tmp/ipykernel_1/2.py"])
def test_typed_code_is_user_code(typed):
    torch_ = cuda([segment(BASE, (USED, 512, {"frames": [frame(typed, 1, "<module>")]}))])
    (block,) = ledgers(torch_)["cuda:0"].blocks
    assert block.born == SourceLine(typed, 1, "<module>")


def test_a_backward_block_has_no_line_of_the_users_but_keeps_its_stack():
    frames = [frame("??", 0, "at::empty"), frame("", 0, "Engine::thread_main")]
    torch_ = cuda([segment(BASE, (USED, 512, {"frames": frames}), pool=(0, 3))])
    (block,) = ledgers(torch_)["cuda:0"].blocks
    assert block.born is None
    assert [line.function for line in block.stack] == ["at::empty", "Engine::thread_main"]
    assert block.what == "in a private pool"


def test_the_largest_hundred_are_described_and_all_are_counted():
    sizes = [512 * number for number in range(1, 151)]
    ledger = ledgers(cuda([segment(BASE, *((USED, size) for size in sizes))]))["cuda:0"]
    check(ledger)
    assert [block.nbytes for block in ledger.blocks] == sizes[:-101:-1]
    assert (ledger.block_count, ledger.unnamed) == (150, 512 * 150 * 151 // 2)


def test_only_nvidia_has_cublas_workspaces():
    workspaces = [segment(BASE, (USED, 8_519_680), (USED, 32 * MIB), (USED, 33 * MIB))]
    hints = [block.what for block in ledgers(cuda(workspaces))["cuda:0"].blocks]
    assert [bool(hint) for hint in hints] == [False, True, True]
    hints = [block.what for block in ledgers(cuda(workspaces, hip="6.4"))["cuda:0"].blocks]
    assert hints == [None] * 3


# -- the driver


@pytest.mark.parametrize(
    ("listed", "options", "why"),
    [
        (None, {}, "pip install nvidia-ml-py"),
        ([], {}, "container"),
        ([(os.getpid(), None)], {}, "WDDM"),
        ([(os.getpid(), 2 * MIB - 1)], {}, "2,097,151 B for this process do not fit"),
        ([(os.getpid(), GIB + 1)], {}, "do not fit"),
        ([(os.getpid(), 2 * MIB)], {"prefix": "XPU-"}, "Not Found"),
    ],
)
def test_without_nvmls_word_other_is_whole_and_says_why(nvml, listed, options, why):
    if listed is not None:
        nvml(*listed, **options)
    ledger = ledgers(cuda([segment(BASE, (FREE, 2 * MIB))]))["cuda:0"]
    check(ledger)
    assert ledger.other == GIB - 2 * MIB
    assert terms(ledger)["other", "context"] is None
    assert terms(ledger)["other", "other_processes"] is None
    assert why in ledger.missing["context"]
    assert ledger.missing["context"] == ledger.missing["other_processes"]


def test_a_mig_slice_is_found_by_its_own_uuid(nvml):
    nvml((os.getpid(), 5 * MIB), prefix="MIG-")
    ledger = ledgers(cuda([segment(BASE, (FREE, 2 * MIB))]))["cuda:0"]
    assert terms(ledger)["other", "context"] == 3 * MIB
    assert terms(ledger)["other", "other_processes"] == GIB - 5 * MIB


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"free": RuntimeError("CUDA error: unknown error\nmore")}, "CUDA error: unknown error"),
        ({"capturing": True}, "a CUDA graph is being captured"),
    ],
)
def test_a_driver_that_fails_leaves_the_allocators_figures(options, why):
    ledger = ledgers(cuda(layout(), **options), *TENSORS)["cuda:0"]
    check(ledger)
    assert (ledger.driver_used, ledger.driver_total, ledger.other) == (None, None, None)
    assert ledger.missing["driver_used"].startswith(why)
    assert ledger.missing["other"] == ledger.missing["driver_used"]
    assert (ledger.allocated, ledger.named, ledger.cached) == (8_525_312, 5632, 37_612_032)
    assert "context" not in {term.key for term in ledger.parts}


def test_a_driver_that_tells_less_than_is_reserved():
    ledger = ledgers(cuda([segment(BASE, (FREE, 2 * GIB))]))["cuda:0"]
    check(ledger)
    assert (ledger.driver_used, ledger.reserved, ledger.other) == (GIB, 2 * GIB, None)
    assert "managed memory" in ledger.missing["other"]


def test_tensors_on_a_device_without_a_context_do_not_make_one():
    ledger = ledgers(cuda([], used=(0,)), ("cuda:2", BASE, 512))["cuda:2"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.driver_used) == (0, 0, None)
    assert ledger.missing["driver_used"] == "this process has not used cuda:2"
    assert terms(ledger)["other", "outside"] == 512


def test_the_current_device_may_have_no_context():
    ledger = ledgers(cuda(layout(), used=(1,)))["cuda:1"]
    check(ledger)
    assert (ledger.driver_used, ledger.other) == (GIB, GIB - 2 * MIB)


# -- other allocators, and none


def test_cuda_malloc_async_is_counted_by_its_pool():
    torch_ = cuda(forbidden, backend="cudaMallocAsync", stats=(9000, 32 * MIB))
    ledger = ledgers(torch_, ("cuda:0", BASE, 4000), ("cuda:0", BASE + 4096, 1000))["cuda:0"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (9000, 5000, 4000)
    assert (ledger.reserved, ledger.cached) == (32 * MIB, 32 * MIB - 9000)
    assert ledger.other == GIB - 32 * MIB
    assert (ledger.source, ledger.block_count) == ("cudaMallocAsync pool", 0)
    assert "allocator does not tell its blocks" in ledger.explanations["unnamed"]


def test_statistics_below_the_named_bytes():
    torch_ = cuda(backend="cudaMallocAsync", stats=(4000, 2 * MIB))
    ledger = ledgers(torch_, ("cuda:0", BASE, 4001))["cuda:0"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (4000, 4001, None)
    assert "not its own" in ledger.missing["unnamed"]


@pytest.mark.parametrize("segments", [RuntimeError("no snapshot"), [{"device": 0}], [7]])
def test_segments_that_cannot_be_read_leave_the_statistics(segments):
    ledger = ledgers(cuda(segments, stats=(1024, 2 * MIB)), ("cuda:0", BASE, 1000))["cuda:0"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (1024, 1000, 24)


def test_a_pluggable_allocator_tells_nothing():
    reason = "CUDAPluggableAllocator does not yet support getDeviceStats."
    torch_ = cuda(backend="pluggable", stats=RuntimeError(f"{reason} Please file an issue\nmore"))
    ledger = ledgers(torch_, ("cuda:0", BASE, 1000))["cuda:0"]
    check(ledger)
    assert (ledger.allocated, ledger.reserved, ledger.named) == (None, None, 1000)
    assert ledger.driver_used == GIB
    for name in ("allocated", "unnamed", "reserved", "cached", "other"):
        assert ledger.missing[name].startswith(reason)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"initialised": False}, "this process has not initialised cuda"),
        ({"forked": True}, "cuda cannot be used in a forked process"),
    ],
)
def test_an_uninitialised_device_is_not_asked(options, why):
    torch_ = cuda(**options)
    assert ledgers(torch_) == {}
    ledger = ledgers(torch_, ("cuda:0", BASE, 1000))["cuda:0"]
    check(ledger)
    assert ledger.named == 1000
    assert {name for name in FIGURES if getattr(ledger, name) is None} == {*FIGURES} - {"named"}
    assert set(ledger.missing.values()) == {why}


def test_peaks_stay_as_they_are():
    torch_ = cuda(backend="cudaMallocAsync", stats=(4000, 2 * MIB))
    devices = Accelerators(torch_)
    devices.device_counter("cuda:0")
    device_ledgers(table_of(), devices)  # the stub's reset raises
    assert torch_._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"] == 4007


# -- other backends


def test_xpu_is_read_block_by_block_too():
    stats = {"allocated_bytes": {"all": {"current": 512, "peak": 512}}}
    stats["reserved_bytes"] = {"all": {"current": 2 * MIB}}
    c_module = SimpleNamespace(
        _xpu_memoryStats=lambda index: stats,
        _xpu_resetPeakMemoryStats=forbidden,
        _xpu_getDevice=lambda: 0,
    )
    xpu = SimpleNamespace(
        is_initialized=lambda: True,
        _is_in_bad_fork=lambda: False,
        device_count=lambda: 1,
        memory_snapshot=lambda: [segment(BASE, (USED, 512), (FREE, 2 * MIB - 512))],
        mem_get_info=lambda index: (GIB, 3 * GIB),
    )
    torch_ = SimpleNamespace(_C=c_module, xpu=xpu, version=SimpleNamespace())
    ledger = ledgers(torch_, ("xpu:0", BASE, 500))["xpu:0"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (512, 512, 0)
    assert (ledger.reserved, ledger.cached) == (2 * MIB, 2 * MIB - 512)
    assert (ledger.driver_used, ledger.other) == (2 * GIB, 2 * GIB - 2 * MIB)
    assert terms(ledger)["named", "rounding"] == 12
    del xpu.memory_snapshot
    ledger = ledgers(torch_, ("xpu:0", BASE, 500))["xpu:0"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (512, 500, 12)


def test_mps_is_one_device_whichever_way_it_is_spelled():
    stats = {"allocated_bytes": {"all": {"current": 768, "peak": 900}}}
    stats["reserved_bytes"] = {"all": {"current": 8 * MIB}}
    c_module = SimpleNamespace(
        _has_mps=True,
        _accelerator_isAllocatorInitialized=lambda: True,
        _accelerator_getDeviceStats=lambda index: stats,
        _accelerator_resetPeakStats=forbidden,
    )
    module = SimpleNamespace(
        _is_in_bad_fork=lambda: False,
        driver_allocated_memory=lambda: 9 * MIB,
        recommended_max_memory=lambda: GIB,
    )
    torch_ = SimpleNamespace(_C=c_module, mps=module)
    # the addresses are of Metal's objects, and say nothing of where the next one lies
    found = ledgers(torch_, ("mps:0", 4096, 400), ("mps:0", 4160, 200))
    assert list(found) == ["mps"]
    ledger = found["mps"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (768, 600, 168)
    assert (ledger.reserved, ledger.cached, ledger.other) == (8 * MIB, 8 * MIB - 768, MIB)
    assert (ledger.driver_used, ledger.driver_total) == (9 * MIB, GIB)
    assert "Metal" in ledger.explanations["driver_used"]


def test_a_backend_from_outside_torch_has_no_figures_but_its_tensors():
    torch_ = SimpleNamespace(_C=SimpleNamespace())
    ledger = ledgers(torch_, ("npu:1", 64, 100))["npu:1"]
    check(ledger)
    assert (ledger.allocated, ledger.named, ledger.unnamed) == (None, 100, None)
    assert set(ledger.missing.values()) == {"torch tells nothing of the memory of npu devices"}


# -- the torch that is installed


def test_a_cpu_build_has_no_ledgers_and_stays_as_it_was():
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("there is an accelerator here")
    assert device_ledgers(table_of(("cpu", 64, 100), ("meta", 0, 100))) == {}
    assert not torch.cuda.is_initialized()


# -- many layouts


def random_segments(draw):
    address, found = BASE, []
    for _ in range(draw.randrange(1, 12)):
        blocks = [
            (draw.choice([USED, USED, FREE, WAITS]), 512 * draw.randrange(1, 5000))
            for _ in range(draw.randrange(1, 9))
        ]
        pool = draw.choice([(0, 0), (0, 0), (0, 1), (2, 0)])
        found.append(segment(address, *blocks, device=draw.randrange(2), pool=pool))
        address += found[-1]["total_size"] + draw.choice([0, 2 * MIB])
    return found


def of_state(segments, state):
    return [block for item in segments for block in item["blocks"] if block["state"] == state]


def check_layout(segments, storages):
    ledger = ledgers(cuda(segments, free=0, total=80 * GIB), *storages)["cuda:0"]
    check(ledger)
    own = [item for item in segments if item["device"] == 0]
    assert ledger.allocated == sum(block["size"] for block in of_state(own, USED))
    assert ledger.reserved == sum(item["total_size"] for item in own)
    split = [
        n for (of, key), n in terms(ledger).items() if of == "cached" and key != "largest_free"
    ]
    assert sum(split) == ledger.cached
    return ledger


@pytest.mark.parametrize("seed", range(40))
def test_random_layouts_balance(seed):
    draw = random.Random(seed)
    segments = random_segments(draw)
    own = [item for item in segments if item["device"] == 0]
    blocks = of_state(own, USED)
    chosen = draw.sample(blocks, len(blocks) // 2)
    storages, spare = [], 0
    for block in chosen:
        less = draw.randrange(512)
        storages.append(("cuda:0", block["address"], block["size"] - less))
        spare += less
    storages += [("cuda:0", block["address"], 64) for block in of_state(own, FREE)]
    ledger = check_layout(segments, storages)
    assert ledger.named == sum(block["size"] for block in chosen)
    assert ledger.block_count == len(blocks) - len(chosen)
    assert terms(ledger)["named", "rounding"] == spare
    assert ("other", "outside") not in terms(ledger)


class PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, text and numbers, and nothing that could run."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name} has no place in a snapshot")


@pytest.mark.parametrize(
    ("name", "reserved", "allocated"),
    [
        # reserved as in data/README.md; allocated is the sum of the segments' allocated_size
        ("attention_from_empty", 3_781_165_056, 31_719_936),
        ("cnn_training", 134_217_728, 48_760_832),
        ("lm_forward_fp32", 610_271_232, 525_286_400),
        ("lora_8bit", 6_471_811_072, 2_297_283_072),
        ("segments_large", 11_276_386_304, 10_728_102_400),
        ("segments_only", 46_137_344, 21_002_752),
    ],
)
def test_snapshots_of_strangers(name, reserved, allocated):
    path = SNAPSHOTS / f"{name}.pickle"
    if not path.exists():
        pytest.skip(f"{path} is not here: it belongs to the project's shared folder")
    with path.open("rb") as file:
        segments = PlainUnpickler(file).load()["segments"]
    assert sum(item["allocated_size"] for item in segments) == allocated
    ledger = check_layout(segments, [])
    assert (ledger.reserved, ledger.allocated) == (reserved, allocated)
    assert (ledger.named, ledger.unnamed) == (0, allocated)
    blocks = of_state(segments, USED)
    assert ledger.block_count == len(blocks)
    half = blocks[::2]
    asked = [("cuda:0", block["address"], block["requested_size"]) for block in half]
    ledger = check_layout(segments, asked)
    assert ledger.named == sum(block["size"] for block in half)
    assert ledger.named + ledger.unnamed == allocated
    assert terms(ledger)["named", "rounding"] == sum(
        block["size"] - block["requested_size"] for block in half
    )
