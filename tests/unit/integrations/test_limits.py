"""What a limit on a test's memory says where a figure of it cannot be had."""

from types import SimpleNamespace

import pytest

from tensorlens.frameworks import arrival
from tensorlens.integrations import limits
from tensorlens.integrations import pytest as plugin


def framework(missing, peak=-1):
    def reader():
        return lambda: (100, peak, -1)

    counter = SimpleNamespace(missing=missing, reader=reader)
    return SimpleNamespace(
        cpu_counter=lambda: counter,
        device_counter=lambda name: counter,
        device_name=str,
        used_devices=lambda: ["cuda:0"],
    )


@pytest.mark.parametrize(("device", "said"), [(None, "cpu"), ("cpu", "cpu"), ("cuda:0", "cuda:0")])
def test_what_has_no_peak_is_left_out_and_said(monkeypatch, device, said):
    found = framework({"peak": "none is kept"})
    monkeypatch.setattr(limits, "whole", lambda: found)
    peaks = limits.Peaks(device)
    peaks.end()
    assert peaks.unknown == f"no peak of {said} is known: none is kept"
    assert peaks._found == {}


def test_host_memory_with_a_peak_is_checked(monkeypatch):
    found = framework({}, peak=160)
    monkeypatch.setattr(limits, "whole", lambda: found)
    peaks = limits.Peaks(None)
    peaks.end()
    assert (peaks.unknown, peaks._found) == ("", {"cpu": 60, "cuda:0": 60})


def test_what_is_only_known_at_the_end_is_said_too(monkeypatch):
    def end():
        peaks.unknown = "no peak of cuda:0 is known"

    peaks = SimpleNamespace(unknown="", end=end)
    monkeypatch.setattr(limits, "Peaks", lambda device: peaks)
    monkeypatch.setattr(arrival, "when_one_arrives", lambda act: act() or [])
    asked = plugin._Limits(memory=1)
    plugin._begin(asked)()
    assert asked.refused == ["no peak of cuda:0 is known"]
