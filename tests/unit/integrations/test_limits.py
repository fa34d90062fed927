"""What a limit on a test's memory says where a figure of it cannot be had."""

from types import SimpleNamespace

import pytest

from tensorlens.errors import UsageError
from tensorlens.frameworks import import_hooks, registry
from tensorlens.integrations import assertions as limits
from tensorlens.integrations import pytest as plugin


def refuse(options):
    raise UsageError("nothing here records")


def use_framework(monkeypatch, missing, peak=-1):
    def reader():
        return lambda: (100, peak, -1)

    counter = SimpleNamespace(missing=missing, reader=reader)
    framework = SimpleNamespace(
        name="fake",
        record=refuse,
        cpu_counter=lambda: counter,
        device_counter=lambda name: counter,
        device_name=str,
        used_devices=lambda: ["cuda:0"],
    )
    monkeypatch.setattr(registry, "_FRAMEWORKS", {"fake": ""})
    monkeypatch.setattr(registry, "_loaded", {"fake": framework})


@pytest.mark.parametrize(("device", "said"), [(None, "cpu"), ("cpu", "cpu"), ("cuda:0", "cuda:0")])
def test_what_has_no_peak_is_left_out_and_said(monkeypatch, device, said):
    use_framework(monkeypatch, {"peak": "none is kept"})
    peaks = limits.Peaks(device)
    peaks.end()
    assert peaks.unknown == f"no peak of {said} is known: none is kept"
    assert peaks._found == {}


def test_host_memory_with_a_peak_is_checked(monkeypatch):
    use_framework(monkeypatch, {}, peak=160)
    peaks = limits.Peaks(None)
    peaks.end()
    assert (peaks.unknown, peaks._found) == ("", {"cpu": 60, "cuda:0": 60})


def test_what_is_only_known_at_the_end_is_said_too(monkeypatch):
    def end():
        peaks.unknown = "no peak of cuda:0 is known"

    peaks = SimpleNamespace(unknown="", end=end)
    monkeypatch.setattr(limits, "Peaks", lambda device: peaks)
    monkeypatch.setattr(import_hooks, "when_one_arrives", lambda act: act() or [])
    asked = plugin._Limits(memory=1)
    plugin._begin(asked)()
    assert asked.refused == ["no peak of cuda:0 is known"]
