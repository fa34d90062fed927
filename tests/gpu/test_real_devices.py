"""Real figures of a real GPU: skipped, with the reason, where there is none."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA or ROCm device here", allow_module_level=True)

from tensorlens.frameworks.torch import accelerators  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def read():
    torch.ones(1, device="cuda:0")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return accelerators.device_counter("cuda:0").reader()


def test_allocated_peak_and_reserved_are_exact(read):
    start, _, _ = read()
    kept = torch.empty(1000, dtype=torch.float32, device="cuda:0")  # 4000 B round up to 4096
    assert read()[:2] == (start + 4096, start + 4096)
    one = torch.empty(1, device="cuda:0")  # 4 B round up to 512
    assert read()[:2] == (start + 4608, start + 4608)
    del one
    large = torch.empty(16 * MIB, dtype=torch.uint8, device="cuda:0")
    del large
    allocated, peak, reserved = read()
    assert (allocated, peak) == (start + 4096, start + 4096 + 16 * MIB)
    assert reserved == torch.cuda.memory_reserved(0)
    assert read()[:2] == (start + 4096, start + 4096)
    del kept


def test_the_users_own_peaks_are_what_they_would_be(read):
    torch.cuda.reset_peak_memory_stats(0)
    start = torch.cuda.memory_allocated(0)
    read()
    for size in (8, 64, 2):
        scratch = torch.empty(size * MIB, dtype=torch.uint8, device="cuda:0")
        del scratch
        assert read()[1] == start + size * MIB
    assert torch.cuda.max_memory_allocated(0) == start + 64 * MIB
    assert torch.cuda.memory_stats(0)["allocated_bytes.all.peak"] == start + 64 * MIB
    assert torch.cuda.memory_stats(0)["requested_bytes.large_pool.peak"] >= 64 * MIB
    assert torch.cuda.max_memory_reserved(0) >= 64 * MIB
    if hasattr(torch.accelerator, "max_memory_allocated"):
        assert torch.accelerator.max_memory_allocated(0) == start + 64 * MIB
    torch.cuda.reset_peak_memory_stats(0)
    assert torch.cuda.max_memory_allocated(0) == start


def test_the_users_reset_within_a_line_loses_neither_peak(read):
    start = torch.cuda.memory_allocated(0)
    read()
    scratch = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda:0")
    del scratch
    torch.cuda.reset_peak_memory_stats(0)
    scratch = torch.empty(4 * MIB, dtype=torch.uint8, device="cuda:0")
    del scratch
    assert read()[1] == start + 32 * MIB
    assert torch.cuda.max_memory_allocated(0) == start + 4 * MIB


def test_every_device_in_use_appears_and_no_other():
    script = """
import torch
from tensorlens.frameworks.torch import accelerators as a
assert a.used_devices() == [] and not torch.cuda.is_initialized()
last = torch.cuda.device_count() - 1
x = torch.ones(1, device=f"cuda:{last}")
assert a.used_devices() == [f"cuda:{last}"], a.used_devices()
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.skipif("stand-in" in torch.cuda.get_device_name(0), reason="it computes nothing")
def test_a_fork_after_import_can_still_use_the_device():
    script = """
import os, torch
from tensorlens.frameworks.torch import accelerators as a
assert a.used_devices() == []
a.device_name("cuda:0")
assert a.device_counter("cuda:0").reader()() == (0, 0, 0)
child = os.fork()
if not child:
    ok = torch.ones(2, device="cuda").sum().item() == 2 and a.used_devices() == ["cuda:0"]
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_device_beyond_the_last_is_refused():
    from tensorlens.errors import DeviceError

    with pytest.raises(DeviceError, match="no such device here"):
        accelerators.device_name(f"cuda:{torch.cuda.device_count()}")
