"""What a limit on a test's memory says where a figure of it cannot be had."""

from types import SimpleNamespace

import pytest

from tensorlens.integrations import limits


def framework(missing):
    def reader():
        return lambda: (100, -1, -1)

    counter = SimpleNamespace(missing=missing, reader=reader)
    return SimpleNamespace(
        cpu_counter=lambda: counter,
        device_counter=lambda name: counter,
        device_name=str,
        used_devices=lambda: ["cuda:0"],
    )


@pytest.mark.parametrize(
    ("device", "left_out", "checked"),
    [(None, True, {"cuda:0": 0}), ("cpu", True, {}), ("cuda:0", False, {"cuda:0": 0})],
)
def test_host_memory_without_a_peak_is_left_out_and_said(monkeypatch, device, left_out, checked):
    found = framework({"peak": "none is kept"})
    monkeypatch.setattr(limits, "whole", lambda: found)
    peaks = limits.Peaks(device)
    peaks.end()
    assert peaks.unknown == ("no peak of cpu is known: none is kept" if left_out else "")
    assert peaks._found == checked


def test_host_memory_with_a_peak_is_checked(monkeypatch):
    found = framework({})
    monkeypatch.setattr(limits, "whole", lambda: found)
    peaks = limits.Peaks(None)
    peaks.end()
    assert (peaks.unknown, [*peaks._found]) == ("", ["cpu", "cuda:0"])
