"""A trace that torch.profiler exports is a recording."""

import torch
from torch.profiler import ProfilerActivity, profile

from tensorlens import load


def test_a_trace_with_memory_has_the_peak_and_its_operator(tmp_path):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        first = torch.empty(1000)
        second = torch.empty(2000)
        del first
        third = torch.empty(500)
    run.export_chrome_trace(str(tmp_path / "trace.json"))
    peak = load(tmp_path / "trace.json").peak("cpu")
    # the trace tells how much was there before it, not what
    made = [each for each in peak.tensors if each.age_ns is not None]
    assert sorted(each.nbytes for each in made) == [4000, 8000]
    assert {each.name for each in made} == {"aten::empty"}
    assert second.nbytes + third.nbytes == 10_000
