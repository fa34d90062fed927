"""Counters of accelerators, driven through a torch that is scripted and must not be woken."""

import copy
import os
import sys
import threading
from types import SimpleNamespace

import pytest

from tensorlens.errors import DeviceError
from tensorlens.frameworks import UNKNOWN

pytest.importorskip("torch")
from tensorlens.frameworks.torch import Accelerators, backends

GROUPS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes", "segment")
POOLS = ("all", "small_pool", "large_pool")


def woken(*_args, **_kwargs):
    raise AssertionError("the profiler initialised a device")


class Allocator:
    """A caching allocator of eight devices, with torch's statistics and their peaks."""

    def __init__(self):
        self.devices = [self._blank() for _ in range(8)]
        self.resets = []
        self.error = None

    def _blank(self):
        def stat():
            return {"current": 0, "peak": 0, "allocated": 0, "freed": 0}

        stats = {group: {pool: stat() for pool in POOLS} for group in GROUPS}
        stats["reserved_bytes_by_private_pools"] = {(0, 1): {pool: stat() for pool in POOLS}}
        stats["oversize_segments"] = stat()
        stats["num_ooms"] = 0
        return stats

    def leaves(self, index):
        return list(leaves(self.devices[index]))

    def change(self, index, delta, groups=("allocated_bytes",), pool="all"):
        for group in groups:
            stat = self.devices[index][group][pool]
            stat["current"] += delta
            stat["peak"] = max(stat["peak"], stat["current"])
            stat["allocated" if delta > 0 else "freed"] += abs(delta)

    def stats(self, index):
        if self.error:
            raise self.error
        return copy.deepcopy(self.devices[index])

    def reset(self, index):
        if self.error:
            raise self.error
        self.resets.append(index)
        for stat in self.leaves(index):
            stat["peak"] = stat["current"]


def leaves(stats):
    for value in stats.values():
        if isinstance(value, dict):
            if "peak" in value:
                yield value
            else:
                yield from leaves(value)


def make(contexts=(), *, initialised=True, backend="native", hip=None, count=8):
    """Return (torch, allocator): a CUDA build whose initialising functions raise."""
    allocator = Allocator()
    state = SimpleNamespace(initialised=initialised, forked=False, contexts=set(contexts))
    asked = []

    def has_context(index):
        # at::cuda::device_count would initialise the driver
        assert state.initialised, "asked for a context before initialisation"
        asked.append(index)
        return index in state.contexts

    c_module = SimpleNamespace(
        _cuda_memoryStats=allocator.stats,
        _cuda_resetPeakMemoryStats=allocator.reset,
        _cuda_hasPrimaryContext=has_context,
        _cuda_getAllocatorBackend=lambda: backend,
        _cuda_getDevice=lambda: 2 if state.initialised else woken(),
        _cuda_getDeviceCount=woken,
        _cuda_init=woken,
        _accelerator_getDeviceStats=allocator.stats,
        _accelerator_resetPeakStats=allocator.reset,
        _accelerator_getAccelerator=lambda: SimpleNamespace(type="cuda"),
    )
    cuda = SimpleNamespace(
        is_initialized=lambda: state.initialised and not state.forked,
        _is_in_bad_fork=lambda: state.forked,
        device_count=lambda: count if state.initialised else woken(),
        _device_count_nvml=lambda: count,
        _device_count_amdsmi=lambda: count,
        _lazy_init=woken,
        init=woken,
    )
    torch = SimpleNamespace(
        _C=c_module, cuda=cuda, version=SimpleNamespace(hip=hip), __version__="9.9+cu999"
    )
    torch.state, torch.asked = state, asked
    return torch, allocator


def user_peak(torch, index, group="allocated_bytes", pool="all"):
    """What torch.cuda.max_memory_allocated(index) comes down to."""
    return torch._C._cuda_memoryStats(index)[group][pool]["peak"]


# -- which devices are in use


def test_only_devices_with_a_context_are_in_use_and_none_before_initialisation():
    torch, _ = make({0, 3, 7}, initialised=False)
    devices = Accelerators(torch)
    assert devices.used_devices() == []
    torch.state.initialised = True
    assert devices.used_devices() == ["cuda:0", "cuda:3", "cuda:7"]


def test_a_device_shows_up_at_its_first_use_and_known_ones_are_not_asked_again():
    torch, _ = make({1})
    devices = Accelerators(torch)
    first = devices.used_devices()
    torch.asked.clear()
    assert devices.used_devices() is first
    assert torch.asked == [0, 2, 3, 4, 5, 6, 7]
    torch.state.contexts.add(0)
    assert devices.used_devices() == ["cuda:1", "cuda:0"]
    torch.state.contexts.update(range(8))
    assert len(devices.used_devices()) == 8
    torch.asked.clear()
    devices.used_devices()
    assert torch.asked == []


def test_without_the_context_test_a_device_is_in_use_once_it_allocated():
    torch, allocator = make()
    del torch._C._cuda_hasPrimaryContext
    devices = Accelerators(torch)
    assert devices.used_devices() == []
    allocator.change(5, 512)
    allocator.change(5, -512)
    assert devices.used_devices() == ["cuda:5"]
    assert allocator.resets == []


def test_a_lost_context_raises_nothing():
    torch, _ = make({0})

    def lost(index):
        raise RuntimeError("CUDA error: device-side assert triggered")

    torch._C._cuda_hasPrimaryContext = lost
    assert Accelerators(torch).used_devices() == []


def test_a_forked_child_starts_over():
    torch, _ = make({0})
    devices = Accelerators(torch)
    assert devices.used_devices() == ["cuda:0"]
    read = devices.device_counter("cuda:0").reader()
    torch.state.forked = True
    devices.forget_use()
    assert devices.used_devices() == []
    assert read() == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert "forked" in devices.device_counter("cuda:0").missing["peak"]


# -- figures


def test_figures_are_the_allocators_and_the_peak_starts_again_at_each_read():
    torch, allocator = make({0})
    read = Accelerators(torch).device_counter("cuda:0").reader()
    allocator.change(0, 2 << 20, ["reserved_bytes"])
    allocator.change(0, 1024)
    assert read() == (1024, 1024, 2 << 20)
    assert allocator.resets == []  # the peak equals what a reset would set it to
    allocator.change(0, 4096)
    allocator.change(0, -4096)
    assert read() == (1024, 5120, 2 << 20)
    assert allocator.resets == [0]
    assert read() == (1024, 1024, 2 << 20)


def level_reader(device_type):
    """What reads natively."""
    assert device_type == 1
    return lambda index: (index, 1024, 2 << 20)


def lost(index):
    raise LookupError("no level")


def test_native_reads_leave_torch_s_peaks_alone(monkeypatch):
    torch, allocator = make({0})
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(backends, "level_reader", level_reader)
    devices = Accelerators(torch)
    counter = devices.device_counter("cuda:1")
    read = counter.reader()
    allocator.change(1, 4096)
    allocator.change(1, -4096)
    assert read() == (1, 1024, 2 << 20)
    # torch's highest may be of before the line that runs: it is not shown in place of that line's
    devices.backends["cuda"]._level = lost
    assert read() == (UNKNOWN,) * 3 and counter.missing["peak"] == "no level"
    allocator.error = RuntimeError("the context is lost")
    assert read() == (UNKNOWN,) * 3
    allocator.error = None
    assert allocator.resets == [] and torch._C._cuda_memoryStats == allocator.stats
    assert user_peak(torch, 1) == 4096


def test_an_allocator_that_reports_no_blocks_is_not_read_natively(monkeypatch):
    torch, allocator = make({0}, backend="cudaMallocAsync")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(backends, "level_reader", level_reader)
    read = Accelerators(torch).device_counter("cuda:0").reader()
    allocator.change(0, 1024)
    assert read() == (1024, 1024, 0)


def test_devices_are_read_each_for_itself():
    torch, allocator = make({0, 1, 2})
    devices = Accelerators(torch)
    reads = [devices.device_counter(f"cuda:{index}").reader() for index in range(3)]
    for index in range(3):
        allocator.change(index, 512 * (index + 1))
        allocator.change(index, -512)
    assert [read()[:2] for read in reads] == [(0, 512), (512, 1024), (1024, 1536)]
    assert allocator.resets == [0, 1, 2]


def test_the_users_peaks_survive_our_resets_on_every_key_and_device():
    torch, allocator = make({0, 6})
    truth = Allocator()
    devices = Accelerators(torch)
    reads = {index: devices.device_counter(index).reader() for index in (0, 6)}
    steps = [(0, 900), (6, 70), (0, -400), (0, 100), (6, -70), (0, -600), (6, 20), (0, 50)]
    for number, (index, delta) in enumerate(steps):
        for both in (allocator, truth):
            both.change(index, delta * 512, GROUPS, POOLS[number % 2])
            pool = both.devices[index]["reserved_bytes_by_private_pools"][(0, 1)]["all"]
            pool["current"] += delta
            pool["peak"] = max(pool["peak"], pool["current"])
            single = both.devices[index]["oversize_segments"]
            single["current"] += delta
            single["peak"] = max(single["peak"], single["current"])
        reads[index]()
        for seen in (torch._C._cuda_memoryStats, torch._C._accelerator_getDeviceStats):
            assert seen(index) == truth.stats(index)
    assert allocator.resets, "a script without resets would prove nothing"


def test_the_users_reset_clears_what_was_folded_and_keeps_the_lines_own_peak():
    torch, allocator = make({0})
    read = Accelerators(torch).device_counter("cuda:0").reader()
    allocator.change(0, 8192)
    allocator.change(0, -8192)
    assert read() == (0, 8192, 0)
    assert user_peak(torch, 0) == 8192
    allocator.change(0, 3072)
    allocator.change(0, -2048)
    torch._C._cuda_resetPeakMemoryStats(0)
    assert user_peak(torch, 0) == 1024
    allocator.change(0, 512)
    assert read() == (1536, 3072, 0)  # before the user's reset 3072, after it 1536
    assert user_peak(torch, 0) == 1536
    assert read() == (1536, 1536, 0)


def test_two_resets_within_one_line_keep_the_higher_peak():
    torch, allocator = make({0})
    read = Accelerators(torch).device_counter("cuda:0").reader()
    for excess in (4096, 1024):
        allocator.change(0, excess)
        allocator.change(0, -excess)
        torch._C._accelerator_resetPeakStats(0)
    assert read() == (0, 4096, 0)
    assert user_peak(torch, 0) == 0


def test_the_accelerator_entry_points_of_another_backend_are_left_alone():
    torch, allocator = make({0})
    torch._C._accelerator_getAccelerator = lambda: SimpleNamespace(type="privateuseone")
    read = Accelerators(torch).device_counter("cuda:0").reader()
    allocator.change(0, 512)
    allocator.change(0, -512)
    read()
    assert torch._C._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["peak"] == 0
    assert user_peak(torch, 0) == 512


def test_installing_is_idempotent_and_shared():
    torch, allocator = make({0})
    first = Accelerators(torch)
    reads = [first.device_counter("cuda:0").reader()]
    wrapper = torch._C._cuda_memoryStats
    second = Accelerators(torch)
    assert second.backends["cuda"].statistics is first.backends["cuda"].statistics
    reads += [item.device_counter("cuda:0").reader() for item in (second, first)]
    for read in reads:
        allocator.change(0, 2048)
        allocator.change(0, -2048)
        assert read() == (0, 2048, 0)
    assert torch._C._cuda_memoryStats is wrapper
    assert user_peak(torch, 0) == 2048


def test_two_copies_of_the_profiler_do_not_hide_peaks_from_each_other_or_the_user():
    torch, allocator = make({0})
    copies = [Accelerators(torch), Accelerators(torch)]  # both before either is installed
    reads = [item.device_counter("cuda:0").reader() for item in copies]
    for read, excess in zip(reads * 2, (4096, 1024, 2048, 512), strict=True):
        allocator.change(0, excess)
        allocator.change(0, -excess)
        assert read() == (0, excess, 0)
    assert user_peak(torch, 0) == 4096
    torch._C._cuda_resetPeakMemoryStats(0)
    assert user_peak(torch, 0) == 0


def test_reads_and_the_users_queries_from_many_threads_lose_no_peak():
    torch, allocator = make({0})
    devices = Accelerators(torch)
    allocator.change(0, 1 << 20)
    allocator.change(0, -(1 << 20))
    seen, queried = [], []

    def work():
        read = devices.device_counter("cuda:0").reader()
        for _ in range(50):
            seen.append(read()[1])
            queried.append(user_peak(torch, 0))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen)[-2:] == [0, 1 << 20]  # exactly one read had it
    assert set(queried) == {1 << 20}


def test_wrappers_look_like_what_they_replace():
    torch, allocator = make({0})

    def _cuda_memoryStats(device):
        """The statistics."""
        return allocator.stats(device)

    torch._C._cuda_memoryStats = _cuda_memoryStats
    Accelerators(torch).device_counter("cuda:0").reader()
    assert torch._C._cuda_memoryStats is not _cuda_memoryStats
    assert torch._C._cuda_memoryStats.__name__ == "_cuda_memoryStats"
    assert torch._C._cuda_memoryStats.__doc__ == "The statistics."


def test_no_bytes_before_initialisation():
    torch, allocator = make(initialised=False)
    allocator.error = AssertionError("read before initialisation")
    read = Accelerators(torch).device_counter("cuda:0").reader()
    assert read() == (0, 0, 0)


# -- errors and other allocators


def test_an_error_is_unknown_with_its_reason_and_ends_when_it_ends():
    torch, allocator = make({0})
    counter = Accelerators(torch).device_counter("cuda:0")
    read = counter.reader()
    assert dict(counter.missing) == {}
    allocator.error = RuntimeError("CUDA error: an illegal memory access\nmore\nlines")
    assert read() == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert counter.missing["allocated"] == "CUDA error: an illegal memory access"
    with pytest.raises(RuntimeError):
        torch._C._cuda_resetPeakMemoryStats(0)  # the user's own call says it in torch's words
    allocator.error = None
    allocator.change(0, 512)
    assert read() == (512, 512, 0)


def test_an_allocator_without_statistics_is_asked_once():
    torch, allocator = make({0}, backend="pluggable")
    allocator.error = RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")
    counter = Accelerators(torch).device_counter("cuda:0")
    read = counter.reader()
    assert counter.source == "pluggable allocator"
    assert read() == (UNKNOWN, UNKNOWN, UNKNOWN)
    allocator.error = AssertionError("asked again")
    assert read() == (UNKNOWN, UNKNOWN, UNKNOWN)
    assert "does not yet support" in counter.missing["reserved"]


@pytest.mark.parametrize(
    ("options", "source", "word"),
    [
        ({}, "CUDA caching allocator", "512 B"),
        ({"hip": "6.4"}, "HIP caching allocator", "512 B"),
        ({"backend": "cudaMallocAsync"}, "cudaMallocAsync pool", "driver"),
    ],
)
def test_sources_are_named(options, source, word):
    torch, _ = make({0}, **options)
    counter = Accelerators(torch).device_counter("cuda:0")
    assert counter.source == source
    assert word in counter.precision


# -- the other backends


def test_xpu_counts_a_device_from_its_first_allocation():
    allocator = Allocator()
    c_module = SimpleNamespace(
        _xpu_memoryStats=allocator.stats,
        _xpu_resetPeakMemoryStats=allocator.reset,
        _xpu_getDevice=lambda: 1,
        _xpu_init=woken,
    )
    xpu = SimpleNamespace(
        is_initialized=lambda: True, _is_in_bad_fork=lambda: False, device_count=lambda: 2
    )
    devices = Accelerators(SimpleNamespace(_C=c_module, xpu=xpu))
    assert devices.used_devices() == []
    allocator.change(1, 1536)
    assert devices.used_devices() == ["xpu:1"]
    assert devices.canonical("xpu") == "xpu:1"
    allocator.change(1, -512)
    assert devices.device_counter("xpu:1").reader()() == (1024, 1536, 0)
    assert c_module._xpu_memoryStats(1)["allocated_bytes"]["all"]["peak"] == 1536


def mps(c_extra, is_available):
    c_module = SimpleNamespace(_has_mps=True, _mps_is_available=woken, **c_extra)
    backends = SimpleNamespace(mps=SimpleNamespace(is_available=is_available))
    module = SimpleNamespace(_is_in_bad_fork=lambda: False)
    return Accelerators(SimpleNamespace(_C=c_module, mps=module, backends=backends))


def test_mps_peaks_of_newer_torch():
    allocator, ready = Allocator(), []
    devices = mps(
        {
            "_accelerator_isAllocatorInitialized": lambda: bool(ready),
            "_accelerator_getDeviceStats": allocator.stats,
            "_accelerator_resetPeakStats": allocator.reset,
            "_mps_currentAllocatedMemory": woken,
        },
        woken,
    )
    assert devices.used_devices() == []
    counter = devices.device_counter("mps:0")
    assert counter.device == "mps"
    read = counter.reader()
    assert read() == (0, 0, 0)
    ready.append(True)
    allocator.change(0, 256)
    allocator.change(0, -128)
    assert devices.used_devices() == ["mps"]
    assert read() == (128, 256, 0)
    assert dict(counter.missing) == {}


def test_mps_of_an_older_torch_has_none_and_is_in_use_once_the_program_asked_for_it():
    def not_a_device_allocator():
        raise RuntimeError("Allocator for mps is not a DeviceAllocator.")

    asked = []

    def is_available():
        assert asked, "asking first would create the Metal device"
        return True

    is_available.cache_info = lambda: SimpleNamespace(currsize=len(asked))
    devices = mps(
        {
            "_accelerator_isAllocatorInitialized": not_a_device_allocator,
            "_mps_currentAllocatedMemory": lambda: 640 if asked else woken(),
            "_mps_driverAllocatedMemory": lambda: 4096,
        },
        is_available,
    )
    assert devices.used_devices() == []
    asked.append(True)
    assert devices.used_devices() == ["mps"]
    counter = devices.device_counter("mps")
    assert counter.reader()() == (640, UNKNOWN, 4096)
    assert list(counter.missing) == ["peak"]


# -- names


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        ("cpu", "cpu"),
        ("cpu:0", "cpu"),
        ("cuda:3", "cuda:3"),
        ("cuda:03", "cuda:3"),
        (" cuda ", "cuda:2"),
        (1, "cuda:1"),
        ("xpu:1", "xpu:1"),
        ("xpu", "xpu:0"),
        ("mps:0", "mps"),
    ],
)
def test_canonical_device_names(name, spelled):
    torch, _ = make()
    assert Accelerators(torch).canonical(name) == spelled


def test_the_bare_backend_is_the_first_device_before_initialisation():
    torch, _ = make(initialised=False)
    assert Accelerators(torch).canonical("cuda") == "cuda:0"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gpu0", "gpu0 is no device: write cuda:0"),
        ("GPU:1", "GPU:1 is no device: write cuda:1"),
        ("hip:1", "hip:1 is no device: write cuda:1"),
        ("CUDA:0", "CUDA:0 is no device: write cuda:0"),
        ("tpu", "tpu is no device: write cpu, cuda:0, xpu:0 or mps"),
        ("cuda:x", "cuda:x is no device: write cpu, cuda:0, xpu:0 or mps"),
        ("", "'' is no device: write cpu, cuda:0, xpu:0 or mps"),
        (True, "True is no device: write cpu, cuda:0, xpu:0 or mps"),
        (-1, "-1 is no device: CUDA devices count from 0"),
        ("mps:1", "mps:1: there is only one mps device"),
        ("cuda:8", "cuda:8: no such device here, there is cuda:0 to cuda:7"),
        ("xpu:0", "xpu:0: this torch (9.9+cu999) was built for cuda"),
    ],
)
@pytest.mark.parametrize("initialised", [True, False])
def test_missing_device_is_one_line(name, text, initialised):
    torch, _ = make(initialised=initialised)
    devices = Accelerators(torch)
    for ask in (devices.device_name, devices.device_counter):
        with pytest.raises(DeviceError) as caught:
            ask(name)
        assert str(caught.value) == text


def test_no_device_visible_and_count_unknown():
    torch, _ = make(initialised=False, count=0)
    with pytest.raises(DeviceError, match="no cuda device is visible"):
        Accelerators(torch).device_name("cuda:0")
    torch, _ = make(initialised=False, count=-1)
    Accelerators(torch).device_name("cuda:127")


def test_the_counter_is_one_for_every_spelling_and_the_cpu_has_none():
    torch, _ = make()
    devices = Accelerators(torch)
    assert devices.device_counter("cuda") is devices.device_counter(2)
    with pytest.raises(DeviceError, match="no accelerator"):
        devices.device_counter("cpu")


# -- the torch that is installed


@pytest.fixture(scope="module")
def cpu_build():
    torch = pytest.importorskip("torch")
    if hasattr(torch._C, "_cuda_memoryStats") or torch._C._has_mps or torch._C._has_xpu:
        pytest.skip("this torch is no CPU build")
    return torch


def test_on_a_cpu_build_nothing_is_used_patched_or_initialised(cpu_build):
    from tensorlens.frameworks.torch import accelerators

    assert accelerators.used_devices() == []
    assert not accelerators.has_accelerators()
    accelerators.device_name("cpu")
    accelerators.device_name(cpu_build.device("cpu"))
    for name in ("cuda:0", "cuda", 0, cpu_build.device("cuda", 1), "mps", "xpu:0"):
        with pytest.raises(DeviceError) as caught:
            accelerators.device_name(name)
        assert str(caught.value).endswith(f": this torch ({cpu_build.__version__}) is a CPU build")
        assert "\n" not in str(caught.value)
    assert not cpu_build.cuda.is_initialized()
    assert not hasattr(cpu_build._C._accelerator_getDeviceStats, "__tensorlens__")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_may_ask(cpu_build):
    from tensorlens.frameworks.torch import accelerators

    child = os.fork()
    if not child:
        os._exit(0 if accelerators.used_devices() == [] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_torch_compile_steps_around_the_wrapper(cpu_build):
    torch, allocator = make({0})
    read = Accelerators(torch).device_counter("cuda:0").reader()
    allocator.change(0, 512)
    allocator.change(0, -512)
    read()
    seen = []

    def step(x):
        seen.append(torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"])
        return x + 1

    compiled = cpu_build.compile(step, backend="eager")
    assert compiled(cpu_build.zeros(2)).tolist() == [1, 1]
    assert seen == [512]
