"""Figures of training steps, of counters that the test makes up."""

import pytest

from tensorlens.integrations import StepMonitor
from tensorlens.lines import DeviceLevel, MeasuredRegion

HOST = DeviceLevel("cpu", 10, 20, 1000)


def metrics(device, monkeypatch):
    """Return those of a step of one phase, and what is shown at the end."""
    monkeypatch.setattr(MeasuredRegion, "begin", lambda self: [])
    monkeypatch.setattr(MeasuredRegion, "figures", lambda self: (0,))
    monkeypatch.setattr(MeasuredRegion, "levels", lambda self, figures: [HOST, device])
    monitor = StepMonitor(explain_oom=False, show=True)
    monitor.begin([])
    monitor.step_begins()
    monitor.phase_ends("forward")
    monitor.step_ends()
    found = monitor.metrics()
    monitor.end()
    return found


@pytest.mark.parametrize("peak", [150, -1])
def test_a_peak_that_is_unknown_is_no_metric(peak, monkeypatch, capsys):
    found = metrics(DeviceLevel("mps:0", 100, peak, 300), monkeypatch)
    known = {"peak_allocated_mem": 150.0, "peak_allocated_mem/forward": 150.0} if peak >= 0 else {}
    known |= {"current_allocated_mem": 100.0}
    known |= {"current_reserved_mem": 300.0, "peak_reserved_mem": 300.0}
    assert found == {f"memory/{name}": value for name, value in known.items()}
    shown = "peak 150 B in step 1 of 1" if peak >= 0 else "peak n/a in 1 step"
    assert capsys.readouterr().err == f"tensorlens: {shown}\n"
