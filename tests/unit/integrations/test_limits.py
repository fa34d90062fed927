"""What a limit on a test's memory says where a figure of it cannot be had."""

import signal
from types import SimpleNamespace

import pytest

from tensorlens.errors import UsageError
from tensorlens.frameworks import registry
from tensorlens.integrations import Limits
from tensorlens.integrations import assertions as limits
from tensorlens.lines import DeviceLevel


def peaks_of(monkeypatch, device, missing, peak=-1):
    """Return the peaks of a framework whose two devices have 100 bytes from the start."""
    framework = SimpleNamespace(name="fake", record=None, device_name=str)
    monkeypatch.setattr(registry, "_FRAMEWORKS", {"fake": ""})
    monkeypatch.setattr(registry, "_loaded", {"fake": framework})
    region = SimpleNamespace(
        begin=lambda: [DeviceLevel(each, 100, 100, -1) for each in ("cpu", "cuda:0")],
        read=lambda: [DeviceLevel(each, 100, peak, -1) for each in ("cpu", "cuda:0")],
        end=lambda: None,
        counters=[SimpleNamespace(device=each, missing=missing) for each in ("cpu", "cuda:0")],
    )
    return limits.Peaks(device, names=False, region=region)


@pytest.mark.parametrize(
    ("device", "said"), [(None, ("cpu", "cuda:0")), ("cpu", ("cpu",)), ("cuda:0", ("cuda:0",))]
)
def test_device_without_peak_is_noted(monkeypatch, device, said):
    peaks = peaks_of(monkeypatch, device, {"peak": "none is kept"})
    peaks.end()
    assert peaks.unknown == {each: f"no peak of {each} is known: none is kept" for each in said}
    assert peaks.found == {}


def test_every_device_without_a_peak_is_refused(monkeypatch):
    peaks = peaks_of(monkeypatch, None, {"peak": "none is kept"})
    monkeypatch.setattr(limits, "Peaks", lambda *_, **__: peaks)
    memory = limits.TensorMemory()
    for device in ("cpu", "cuda:0"):
        with pytest.raises(UsageError, match=f"no peak of {device} is known: none is kept"):
            memory.peak(device)


def test_host_memory_with_a_peak_is_checked(monkeypatch):
    peaks = peaks_of(monkeypatch, None, {}, peak=160)
    peaks.end()
    assert (peaks.unknown, peaks.found) == ({}, {"cpu": 60, "cuda:0": 60})


def test_peaks_known_at_the_end(monkeypatch):
    def end():
        peaks.unknown["cuda:0"] = "no peak of cuda:0 is known"

    peaks = SimpleNamespace(unknown={}, end=end)
    monkeypatch.setattr(limits, "Peaks", lambda device: peaks)
    monkeypatch.setattr(registry, "adapters", lambda: ["one"])
    asked = Limits(memory=1)
    asked.watch()()
    assert asked.refused == ["no peak of cuda:0 is known"]


def test_a_signal_handler_s_exception_reaches_the_test(monkeypatch):
    def expire(number, frame):
        raise TimeoutError("the test took too long")

    monkeypatch.setattr(registry, "_FRAMEWORKS", {"fake": ""})
    monkeypatch.setattr(registry, "_loaded", {"fake": SimpleNamespace(name="fake")})
    monkeypatch.setattr(limits, "Peaks", lambda device: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with pytest.raises(TimeoutError, match="too long"):
            Limits(memory=1).watch()
    finally:
        signal.signal(signal.SIGUSR1, before)
