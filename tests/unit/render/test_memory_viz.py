"""Pickles for torch's memory viewer: it can open them."""

import pickle
import pickletools

import pytest
import rendered_recordings
import rendered_reports

from tensorlens import Recording, render
from tensorlens.errors import FileFormatError, UsageError
from tensorlens.recording import synthetic_segments
from tensorlens.records import (
    ALLOC,
    FREE,
    OOM,
    SEGMENT_ALLOC,
    START,
    EventLog,
    Frame,
    Segment,
    SegmentBlock,
    read,
)
from tensorlens.render import file_content

MIB = 1 << 20
# those that MemoryViz.js obeys; any other makes it throw
VIEWER = (
    "APPEND APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT FRAME LONG1 LONG_BINGET MARK MEMOIZE"
    " PROTO SETITEMS SHORT_BINUNICODE STOP TUPLE2 EMPTY_LIST NEWFALSE NEWTRUE BINPUT BINUNICODE"
    " EMPTY_TUPLE NONE BINFLOAT TUPLE TUPLE1 TUPLE3 LONG_BINPUT LIST DICT SETITEM"
).split()


def written(recording):
    return pickle.loads(file_content(recording, "pickle"))


def viewer_peak(data, device):
    """Add up as the viewer's timeline does: by completed frees and what the segments list."""
    live, before, level, top = {}, 0, 0, 0
    changes = []
    for event in data["device_traces"][device]:
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            changes.append(event["size"])
        elif event["action"] == "free_completed":
            if event["addr"] not in live:
                before += event["size"]
            changes.append(-live.pop(event["addr"], event["size"]))
    for segment in data["segments"]:
        if segment["device"] == device:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated" and block["address"] not in live:
                    before += block["requested_size"]
    level = top = before
    for change in changes:
        level += change
        top = max(top, level)
    return top


@pytest.mark.parametrize("kind", rendered_recordings.KINDS)
def test_the_viewer_can_open_every_kind(kind):
    recording = rendered_recordings.KINDS[kind]()
    content = file_content(recording, "pickle")
    assert content[:2] == b"\x80\x04"
    assert {op.name for op, _, _ in pickletools.genops(content)} <= set(VIEWER)
    data = pickle.loads(content)
    for trace in filter(None, data["device_traces"]):
        categories = {event["category"] for event in trace if "category" in event}
        assert "unknown" in categories
        assert all("device_free" in event for event in trace if event["action"] == "oom")
    for segment in data["segments"]:
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place
            place += block["size"]
        assert place == segment["address"] + segment["total_size"]
    for number, device in enumerate(data["tensorlens"]["devices"]):
        if device in recording.devices and not recording.origin.dropped_peaks:
            assert viewer_peak(data, number) == recording.peak(device).bytes


def test_memory_viz_schema():
    log = EventLog()
    stack = log.stacks.add([Frame("/me/a.py", 3, "f"), Frame("/me/a.py", 9, "<module>")])
    log.append(START, "cuda:1", 0, 1024, 0)
    log.append(SEGMENT_ALLOC, "cuda:1", 2 * MIB, 20 * MIB, 1000)
    log.append(ALLOC, "cuda:1", 2 * MIB, 19 * MIB, 2000, stack)
    log.held[2] = 20 * MIB
    log.append(FREE, "cuda:1", 2 * MIB, 19 * MIB, 3000, stack)
    log.append(OOM, "cuda:1", 77, 90 * MIB, 4000)
    blocks = (
        SegmentBlock(0, 1024, 600, "active_allocated", stack),
        SegmentBlock(1024, 2 * MIB - 1024, 0, "inactive"),
    )
    log.segments = [
        Segment("cuda:1", 0, 2 * MIB, 5, "small", pool="(0, 1)", blocks=blocks),
        Segment(
            "cuda:1", 2 * MIB, 20 * MIB, 7, blocks=(SegmentBlock(2 * MIB, 20 * MIB, 0, "inactive"),)
        ),
    ]
    log.segments_known = True
    recording = Recording(log)
    data = written(recording)
    assert data["device_traces"][0] == []
    trace = data["device_traces"][1]
    assert [event["action"] for event in trace] == [
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "oom",
        "snapshot",
    ]
    frames = [
        {"filename": "/me/a.py", "line": 3, "name": "f"},
        {"filename": "/me/a.py", "line": 9, "name": "<module>"},
    ]
    assert trace[1] == {
        "action": "alloc",
        "addr": 2 * MIB,
        "size": 19 * MIB,
        "stream": 0,
        "time_us": 2,
        "frames": frames,
        "category": recording.blocks([2])[0].role,
    }
    assert (trace[4]["device_free"], trace[4]["size"]) == (77, 90 * MIB)
    small = data["segments"][0]
    assert (small["device"], small["address"], small["total_size"]) == (1, 0, 2 * MIB)
    assert (small["stream"], small["segment_type"], small["segment_pool_id"]) == (
        5,
        "small",
        (0, 1),
    )
    assert (small["allocated_size"], small["active_size"], small["requested_size"]) == (
        1024,
        1024,
        600,
    )
    assert small["blocks"][0] == {
        "address": 0,
        "size": 1024,
        "requested_size": 600,
        "state": "active_allocated",
        "frames": frames,
    }
    assert len(data["segments"]) == 2


def test_stacks_begin_at_the_program():
    log = EventLog()
    module = "/torch/nn/modules/module.py"
    outer = Frame("/me/train.py", 3, "<module>")
    inner = Frame("/me/net.py", 9, "forward")
    names = "Module._call_impl", "Module._wrapped_call_impl"
    calls = [Frame(module, number, name, user=False) for number, name in enumerate(names)]
    start = Frame("/usr/lib/runpy.py", 88, "_run_code", user=False)
    stack = log.stacks.add([inner, *calls, outer, start])
    log.append(ALLOC, "cpu", 0, 64, 0, stack)
    (event, _) = written(Recording(log))["device_traces"][0]
    assert [each["name"] for each in event["frames"]] == ["forward", "<module>"]


def test_frames_are_written_once():
    log = EventLog()
    stack = log.stacks.add([Frame(f"/me/{'x' * 1000}.py", number, "f") for number in range(50)])
    for number in range(1000):
        log.append(ALLOC, "cpu", 64 * number, 64, number, stack)
    assert len(file_content(Recording(log), "pickle")) < 150_000


def test_devices_keep_their_numbers_and_others_get_free_ones():
    log = EventLog()
    for device in ("cpu", "cuda:2", "cuda:0", "mps"):
        log.append(ALLOC, device, 0, 100, 0)
    recording = Recording(log)
    data = written(recording)
    assert data["tensorlens"]["devices"] == ["cuda:0", "cpu", "cuda:2", "mps"]
    assert [len(trace) for trace in data["device_traces"]] == [2] * 4


def test_made_up_segments_lie_around_blocks_that_are_near():
    log = EventLog()
    log.append(START, "cpu", 1000, 24, 0)
    log.append(ALLOC, "cpu", 2000, 48, 0)
    log.append(FREE, "cpu", 2000, 48, 0)
    log.append(ALLOC, "cpu", 2048, 100, 0)
    log.append(ALLOC, "cpu", 2148 + MIB + 1, 7, 0)  # a byte too far
    found = synthetic_segments(log)
    assert [(each.address, each.size) for each in found] == [(1000, 1148), (2149 + MIB, 7)]
    assert [(each.address, each.size, each.state) for each in found[0].blocks] == [
        (1000, 24, "active_allocated"),
        (1024, 1024, "inactive"),
        (2048, 100, "active_allocated"),
    ]


def test_two_blocks_at_one_place_are_both_kept():
    log = EventLog()
    log.append(START, "cpu", 0, 100, 0)
    log.append(ALLOC, "cpu", 50, 100, 0)
    assert viewer_peak(written(Recording(log)), 0) == 200


def test_memory_viz_is_write_only():
    log = EventLog()
    log.append(ALLOC, "cpu", 0, 100, 0)
    with pytest.raises(FileFormatError, match=r"made for other viewers: open it at pytorch\.org"):
        read(file_content(Recording(log), "pickle"))


def test_only_recordings_have_events():
    for extension in ("pickle", "perfetto.json", "trace.json", "speedscope.json", "folded"):
        assert render.checked_ending(f"x.{extension}") == extension
        with pytest.raises(UsageError) as raised:
            render.file_content(rendered_reports.one_line(), extension)
        assert str(raised.value) == f".{extension} is for recordings: save this one as .json"
