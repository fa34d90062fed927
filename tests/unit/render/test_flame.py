"""What was resident at the peak by stack, for speedscope and flame graphs."""

import json

import pytest
import rendered_recordings

from tensorlens import Recording
from tensorlens.records import ALLOC, FREE, START, EventLog, Frame
from tensorlens.render import file_content


def recording():
    log = EventLog()
    main = log.stacks.push(-1, Frame("/me/run.py", 9, "<module>"))
    first = log.stacks.push(main, Frame("C:\\me\\net.py", 3, "forward"))
    second = log.stacks.push(main, Frame("/me/a;b c.py", 4, "odd;name\nof  it"))
    log.append(START, "cpu", 0, 1000, 0)
    log.append(ALLOC, "cpu", 1, 30, 1, first)
    log.append(ALLOC, "cpu", 2, 500, 2, second)
    log.append(ALLOC, "cpu", 3, 70, 3, first)
    log.append(FREE, "cpu", 2, 500, 4, main)
    log.append(ALLOC, "cpu", 4, 9, 5, main)
    return Recording(log)


def test_folded_stacks_go_from_the_outermost_frame_inwards():
    lines = file_content(recording(), "folded").splitlines()
    assert sorted(lines) == [
        "<module> (run.py:9);forward (net.py:3) 100",
        "<module> (run.py:9);odd name of it (a b c.py:4) 500",
        "no stack known 1000",
    ]


def test_folded_stacks_of_several_devices_begin_with_them():
    log = recording().log
    log.append(ALLOC, "cuda:0", 5, 512, 6)
    lines = file_content(Recording(log), "folded").splitlines()
    assert "cuda:0;no stack known 512" in lines
    assert "cpu;no stack known 1000" in lines


def test_stacks_begin_at_the_program_and_leave_out_the_calls_of_modules():
    module = "/x/site-packages/torch/nn/modules/module.py"
    log = EventLog()
    start = log.stacks.push(-1, Frame("/usr/lib/python3.11/runpy.py", 88, "_run_code", False))
    main = log.stacks.push(start, Frame("/me/run.py", 9, "<module>"))
    # what stands around a profiled function is ours
    ours = "/x/site-packages/tensorlens/lines/wrappers.py"
    wrapper = log.stacks.push(main, Frame(ours, 78, "WrappingMixin.wrap.<locals>.wrapper", False))
    wrapper = log.stacks.push(wrapper, Frame("<tensorlens call>", 1, "<lambda>", False))
    call = log.stacks.push(wrapper, Frame(module, 1778, "Module._wrapped_call_impl", False))
    for line in (1789, 1884):  # with and without hooks: for the reader one stack
        inner = log.stacks.push(call, Frame(module, line, "Module._call_impl", False))
        stack = log.stacks.push(inner, Frame("/x/torch/nn/linear.py", 134, "Linear.forward", False))
        log.append(ALLOC, "cpu", line, 8, line, stack)
    log.append(ALLOC, "cpu", 1, 32, 2000, start)
    assert sorted(file_content(Recording(log), "folded").splitlines()) == [
        "<module> (run.py:9);Linear.forward (linear.py:134) 16",
        "_run_code (runpy.py:88) 32",
    ]


def test_speedscope_has_a_profile_in_bytes():
    data = json.loads(file_content(recording(), "speedscope.json"))
    assert data["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    frames = data["shared"]["frames"]
    assert {"name": "forward (net.py:3)", "file": "C:\\me\\net.py", "line": 3} in frames
    assert {"name": "no stack known"} in frames
    (profile,) = data["profiles"]
    assert (profile["type"], profile["unit"]) == ("sampled", "bytes")
    assert (profile["startValue"], profile["endValue"]) == (0, 1600)
    named = {
        tuple(frames[number]["name"].partition(" ")[0] for number in sample): weight
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
    }
    assert named == {("<module>", "forward"): 100, ("<module>", "odd;name"): 500, ("no",): 1000}


@pytest.mark.parametrize("kind", rendered_recordings.KINDS)
def test_every_kind_adds_up_to_its_peak(kind):
    made = rendered_recordings.KINDS[kind]()
    peaks = [made.peak(device).bytes for device in made.devices]
    data = json.loads(file_content(made, "speedscope.json"))
    assert [sum(profile["weights"]) for profile in data["profiles"]] == peaks
    assert [profile["endValue"] for profile in data["profiles"]] == peaks
    for profile in data["profiles"]:
        assert set(profile) == {
            "type",
            "name",
            "unit",
            "startValue",
            "endValue",
            "samples",
            "weights",
        }
        assert all(
            0 <= number < len(data["shared"]["frames"])
            for sample in profile["samples"]
            for number in sample
        )
    lines = file_content(made, "folded").splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == sum(peaks)
