"""An accelerator's level and its peaks, read natively, of a stand-in for its allocator."""

import pytest
import torch

from tensorlens.frameworks.torch import level_reader
from tensorlens.native import NativeUnavailable
from tests.torch.stand_in_device import stand_in

CUDA, XPU = 1, 12


@pytest.fixture
def device(monkeypatch):
    try:
        with stand_in(monkeypatch) as found:
            yield found
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def read(device):
    device.library.tell_statistics()
    level = level_reader(CUDA)
    # what other tests have left; the second read has no peak of theirs
    before = {index: [level(index), level(index)][1] for index in (0, 2)}

    def read(index):
        levels = zip(level(index), before.get(index, (0, 0, 0)), strict=True)
        allocated, peak, reserved = (now - then for now, then in levels)
        return allocated, peak, reserved

    yield read
    device.library.tell_no_statistics()


def made(device, nbytes, index=0):
    with device.on(index):
        return torch.empty(nbytes, dtype=torch.uint8)


def test_the_peak_starts_again_at_each_read(device, read):
    kept = made(device, 1000)
    assert read(0) == (1024, 1024, 2048)
    del kept
    assert read(0) == (0, 1024, 0)
    assert read(0) == (0, 0, 0)


def test_the_peak_is_the_highest_instant(device, read):
    kept = made(device, 512)
    for nbytes in (4096, 65536, 512):
        scratch = made(device, nbytes)
        del scratch
    assert read(0) == (512, 512 + 65536, 1024)
    del kept


def test_devices_are_read_each_for_itself(device, read):
    first, third = made(device, 512), made(device, 2048, 2)
    assert read(2) == (2048, 2048, 4096)
    assert read(0) == (512, 512, 1024)
    del first, third


def test_blocks_of_threads_without_python_count(device, read):
    with device.on(0):
        block = device.library.hand_out(4096)
    device.library.hand_back(block)
    assert read(0) == (0, 4096, 0)


def test_missing_allocator_statistics_are_none(device, read):
    for unknown in (lambda: read(9), lambda: level_reader(XPU)(0)):
        with pytest.raises(LookupError):
            unknown()
