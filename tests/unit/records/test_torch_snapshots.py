"""Memory snapshots as recordings: every form torch has given them, and what is wrong in them."""

import json
import pickle

import pytest
from caching_allocator import CachingAllocator
from torch_recordings import from_snapshot, read

from tensorlens import load
from tensorlens.errors import FileFormatError
from tensorlens.records import ALLOC, FREE, START, Context, Mark, SourceLine

MIB = 1 << 20
PY = {"filename": "/me/train.py", "line": 7, "name": "step"}
OUTER = {"filename": "/me/train.py", "line": 30, "name": "<module>"}
TORCH = {"filename": "/v/site-packages/torch/nn/functional.py", "line": 2, "name": "relu"}
OP = {"filename": "??", "line": 0, "name": "at::_ops::add_Tensor::call(at::Tensor const&)"}
INNER = {"filename": "??", "line": 0, "name": "at::_ops::empty_memory_format::redispatch(int)"}
NODE = {
    "filename": "??",
    "line": 0,
    "name": "torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)",
}
ENGINE = {
    "filename": "??",
    "line": 0,
    "name": "torch::autograd::Engine::evaluate_function(std::shared_ptr<GraphTask>&)",
}


def event(action, addr=0, size=100, **others):
    return {"action": action, "addr": addr, "size": size, "stream": 0, **others}


def trace(*events, segments=()):
    return {"segments": list(segments), "device_traces": [list(events)]}


def segment(*blocks, address=0, **others):
    made = [
        {"size": size, "state": state, "requested_size": requested, "frames": [PY]}
        for size, state, requested in blocks
    ]
    total = sum(size for size, _, _ in blocks)
    return {"device": 0, "address": address, "total_size": total, "blocks": made, **others}


def rows(log):
    return [
        (log.kind[row], log.address[row], log.size[row], log.pair[row]) for row in range(len(log))
    ]


def test_a_block_counts_from_its_allocation_until_its_free_is_asked_for():
    log = from_snapshot(
        trace(
            event("alloc", 0, 513, time_us=5_000_010),
            event("free_requested", 0, 513, time_us=5_000_012),
            event("snapshot", time_us=5_000_013),
            event("free_completed", 0, 513, time_us=5_000_014),
        )
    ).log
    assert rows(log) == [(ALLOC, 0, 1024, 1), (FREE, 0, 1024, 0)]
    assert list(log.time) == [0, 2000]
    assert log.devices == ["cuda:0"]


def test_earlier_blocks_come_first():
    data = trace(
        event("free_requested", 4096, 700),  # never seen handed out
        event("free_completed", 4096, 700),
        event("free_completed", 8192, 9),  # asked for before the trace: counts no longer
        event("alloc", 4096, 100),
        segments=[segment((512, "active_allocated", 1), (512, "inactive", 0))],
    )
    log = from_snapshot(data).log
    assert rows(log) == [
        (START, 4096, 1024, 2),
        (START, 0, 512, -1),
        (FREE, 4096, 1024, 0),
        (ALLOC, 4096, 512, -1),
    ]


def test_gaps_in_a_trace_are_told():
    data = trace(
        event("alloc", 0, 1),
        event("alloc", 0, 600),  # the free between them is missing
        event("free_requested", 0, 600),
        event("free_requested", 0, 600),  # and here an allocation
        segments=[segment((512, "active_allocated", 5))],  # and one after the end
    )
    recording = from_snapshot(data)
    log = recording.log
    assert rows(log) == [
        (ALLOC, 0, 512, 1),
        (FREE, 0, 512, 0),
        (ALLOC, 0, 1024, 3),
        (FREE, 0, 1024, 2),
        (ALLOC, 0, 512, -1),
    ]
    assert recording.origin.notes[1:3] == (
        "cuda:0: 1 blocks were handed out after the trace ended; they stand at its end",
        "cuda:0: the trace lacks 2 allocations or frees",
    )


def test_segments_without_a_trace_are_one_moment():
    blocks = segment(
        (1024, "active_allocated", 600),
        (512, "inactive", 77),
        (512, "active_pending_free", 3),
        (1024, "active_awaiting_free", 3),
        (2048, "active_allocated", 2048),
    )
    for data in ({"segments": [blocks]}, trace(segments=[blocks])):
        recording = from_snapshot(data)
        assert rows(recording.log) == [(START, 0, 1024, -1), (START, 3072, 2048, -1)]
        peak = recording.peak()
        assert (peak.bytes, peak.held, peak.reserved) == (3072, 3072, 5120)
        assert recording.origin.notes == (
            "a snapshot without a trace: what was there at one moment",
        )
        states = [block.state for block in recording.log.segments[0].blocks]
        assert states[2:4] == ["active_pending_free"] * 2


def test_frames_tell_the_line_the_operator_and_the_node():
    frames = [INNER, OP, NODE, ENGINE, TORCH, PY, OUTER]
    log = from_snapshot(trace(event("alloc", 0, 1, frames=frames))).log
    assert [frame.user for frame in log.stacks.of(log.stack[0])] == [False] * 5 + [True] * 2
    assert log.contexts[log.context[0]] == Context(
        op="aten::empty", outer="aten::add", node="MmBackward0", phase="backward"
    )
    assert log[0].stack[-2].line == SourceLine("/me/train.py", 7, "step")
    # without the engine no node runs
    log = from_snapshot(trace(event("alloc", 0, 1, frames=[OP, PY]))).log
    assert log.contexts[log.context[0]] == Context(op="aten::add")
    log = from_snapshot(trace(event("alloc", 0, 1, frames=[PY]))).log
    assert list(log.context) == [-1]


@pytest.mark.parametrize(
    ("filename", "user"),
    [
        ("/me/train.py", True),
        ("C:\\me\\train.py", True),
        ("<stdin>", True),
        ("/tmp/ipykernel_9/12.py", True),
        ("<frozen runpy>", False),
        ("/usr/lib/python3.11/threading.py", False),
        ("/v/lib/python3.13t/site-packages/einops/e.py", False),
        ("C:\\Python311\\Lib\\threading.py", False),
        ("/src/pytorch/torch/nn/modules/module.py", False),
        ("/src/pytorch/torch/_tensor.py", False),
        ("/me/torch/train.py", True),
        ("ceval.c", False),
        ("??", False),
        ("", False),
    ],
)
def test_whose_a_file_is_follows_from_its_path(filename, user):
    log = from_snapshot(trace(event("alloc", frames=[{**PY, "filename": filename}]))).log
    assert log.stacks.frames[0].user is user


def test_devices_share_one_clock():
    data = {
        "segments": [],
        "device_traces": [
            [event("alloc", 0, 1, time_us=10), event("alloc", 512, 1, time_us=30)],
            [],
            [event("alloc", 0, 1, time_us=20)],
        ],
    }
    log = from_snapshot(data).log
    assert [log.devices[number] for number in log.device] == ["cuda:0", "cuda:2", "cuda:0"]
    assert list(log.time) == [0, 10_000, 20_000]


def test_without_times_events_keep_their_order():
    recording = from_snapshot(trace(event("alloc", 0), event("alloc", 512)))
    assert list(recording.log.time) == [0, 1000]
    assert recording.origin.started is None
    assert "no times" in recording.origin.notes[0]


def test_a_clock_set_back_does_not_turn_the_order():
    data = trace(event("alloc", 0, time_us=20), event("free_requested", 0, time_us=10))
    assert [row[0] for row in rows(from_snapshot(data).log)] == [ALLOC, FREE]


def test_ranges_that_torch_noted_are_marks():
    data = trace(event("alloc", 0, time_us=1000), event("alloc", 512, time_us=1005))
    data["external_annotations"] = [
        {"stage": "START", "name": "step", "device": 0, "time_us": 1003},
        {"stage": "END", "name": "step", "device": 0, "time_us": 1004},
    ]
    assert from_snapshot(data).marks == (Mark("step", 1, 3000),)


def test_an_allocator_emptied_at_the_end_has_known_segments():
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(MIB))
    allocator.empty_cache()
    peak = from_snapshot(allocator.snapshot()).peak()
    assert (peak.bytes, peak.reserved) == (MIB, 2 * MIB)
    without = trace(event("alloc", 0, 1))
    assert from_snapshot(without).peak().reserved is None


def test_the_file_is_read_as_a_pickle_and_as_json(tmp_path):
    data = trace(event("alloc", 0, 513, frames=[PY]))
    for protocol in (2, 3, 4, 5):
        assert read(pickle.dumps(data, protocol)).peak().bytes == 1024
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(data) + b"\0\0")
    assert load(tmp_path / "a.pickle").peak().bytes == 1024
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert load(tmp_path / "a.json").peak().bytes == 1024


FREE_BLOCK = (512, "inactive", 0)
ODD = [None, -1, 1.5, "x", b"x", [], {}, [[]], {"a": 1}, (1,), 2**64, 2**200, True]


def damaged():
    good = event("alloc", 0, 1, frames=[PY], time_us=5, user_metadata="")
    for key in good:
        for value in ODD:
            yield trace({**good, key: value})
    for key in PY:
        for value in ODD:
            yield trace(event("alloc", frames=[{**PY, key: value}]))
    listed = segment(FREE_BLOCK, is_expandable=False, segment_pool_id=(0, 0), stream=0)
    for key in listed:
        for value in ODD:
            yield trace(segments=[{**listed, key: value}])
    block = {**listed["blocks"][0], "address": 0, "history": []}
    for key in block:
        for value in ODD:
            yield trace(segments=[{**listed, "blocks": [{**block, key: value}]}])
    for value in ODD:
        yield value
        yield {"segments": value}
        yield {"device_traces": value}
        yield {"segments": [value], "device_traces": []}
        yield {"segments": [], "device_traces": [value]}
        yield trace(value)
        yield trace(event("alloc", frames=[value]))
        yield trace(event("alloc", frames=value))
        yield {**trace(event("alloc", time_us=1)), "external_annotations": value}
        yield {**trace(event("alloc", time_us=1)), "external_annotations": [value]}
        yield {**trace(), "allocator_settings": value}


def test_random_snapshots_are_read_or_refused():
    count = refused = 0
    for data in damaged():
        count += 1
        try:
            from_snapshot(data)
        except FileFormatError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 200
    assert count > 300 and refused > count // 4


def test_a_ring_of_lists_is_no_ring_of_work():
    ring = []
    ring.append(ring)
    with pytest.raises(FileFormatError):
        from_snapshot({"segments": ring, "device_traces": ring})
    frames = [PY]
    frames.append(frames)
    with pytest.raises(FileFormatError):
        from_snapshot(trace(event("alloc", frames=frames)))


PYTHON = "/usr/lib/python3.11/site-packages/net/model.py"


def test_native_frames_of_a_snapshot_do_not_hide_python():
    native = {"filename": "alloc.cpp", "line": 31, "name": "malloc"}
    library = {"filename": PYTHON, "line": 5, "name": "forward"}
    data = trace(event("alloc", 0, 512, frames=[native, library]))
    peak = from_snapshot(data).peak()
    assert [str(line) for line in peak.by_line] == [f"{PYTHON}:5 in forward"]
