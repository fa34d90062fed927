"""Snapshots from real machines, against figures computed from their traces by others."""

from pathlib import Path

import pytest

from tensorlens import load
from tensorlens.records import ALLOC, START

FOLDER = Path(__file__).parents[3].parent / "shared" / "data" / "snapshots"
TABLE = {
    "attention_from_empty.pickle": (3_249_144_832, 3_781_165_056),
    "lm_forward_fp32.pickle": (558_317_568, 610_271_232),
    "cnn_training.pickle": (108_275_712, 134_217_728),
    "lora_8bit.pickle": (5_888_012_288, 6_471_811_072),
}
SEGMENTS = ("segments_only.pickle", "segments_large.pickle")


def loaded(name):
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"the measured snapshots are not beside the checkout: no {name}")
    return load(path)


@pytest.mark.parametrize("name", TABLE)
def test_the_peak_and_what_was_reserved_at_the_end(name):
    recording = loaded(name)
    requested, reserved = TABLE[name]
    assert recording.devices == ("cuda:0",)
    found = recording.peak("cuda:0")
    # requests alone make the published peak; the blocks that were not split are beside them
    assert requested <= found.bytes == found.held <= found.reserved
    assert sum(each.nbytes for each in found.tensors) == found.bytes
    assert recording.at(len(recording.log) - 1).reserved == reserved
    assert sum(segment.size for segment in recording.log.segments) == reserved


@pytest.mark.parametrize("name", [*TABLE, *SEGMENTS])
def test_trace_and_segments_agree(name):
    recording = loaded(name)
    log = recording.log
    # the segments' own sizes of what is still there, and no event that they contradict
    listed = {
        (segment.device, block.address): block.size
        for segment in log.segments
        for block in segment.blocks
        if block.state == "active_allocated"
    }
    there = {
        (log.devices[log.device[row]], log.address[row]): log.held.get(row, log.size[row])
        for row, kind in enumerate(log.kind)
        if kind in (START, ALLOC) and log.pair[row] < 0
    }
    assert there == listed
    for note in recording.origin.notes:
        assert "segments" not in note and "not known" not in note and "lacks" not in note


@pytest.mark.parametrize("name", SEGMENTS)
def test_segments_alone_are_one_moment(name):
    recording = loaded(name)
    blocks = [block for segment in recording.log.segments for block in segment.blocks]
    handed_out = sum(block.size for block in blocks if block.state == "active_allocated")
    peak = recording.peak()
    assert (peak.bytes, peak.held, peak.row) == (handed_out, handed_out, -1)
    assert peak.reserved == sum(segment.size for segment in recording.log.segments)


def test_random_events_are_read():
    recording = loaded("synthetic.pickle")
    # 520 allocations, each freed, and 17 blocks in the segments
    assert len(recording.log) == 520 * 2 + 17
    assert [mark.name for mark in recording.marks] == ["Annotation3", "Annotation3", "Annotation1"]
