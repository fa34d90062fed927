"""Traces from real machines: the same requests must give the same addresses and segments."""

import pytest
from real_traces import raw, read
from restored import restore

from tensorlens.planning.allocators import CachingAllocator
from tensorlens.records import ALLOC, START, EventLog, from_snapshot

# segments taken during the trace, blocks from memory held already, bytes reserved at the end
TABLE = {
    "attention_from_empty.pickle": (9, 27, 3_781_165_056),
    "lm_forward_fp32.pickle": (0, 681, 610_271_232),
    "cnn_training.pickle": (7, 1928, 134_217_728),
    "lora_8bit.pickle": (152, 3353, 6_471_811_072),
}

PUBLISHED = [
    "Wedsonlin+assignment2-systems__results_medium_256_training_memory_snapshot.pickle.xz",
    "kkaitlyn111+cs336-a2-systems__memory_files_memory_ctx128_forward_mixed.pickle.xz",
    "xiaolin2004+assignment2-systems__memory_profiles_memory_profiles_forward_only_128_fp32.pickle.xz",
]
"""Blocks with remainders that were not split off are there at their peaks."""
ODD_LINES = (
    "kkaitlyn111+cs336-a2-systems__cs336_systems_memory_logs_memory_ctx128_forward.pickle.xz"
)
"""Some of its frames have line numbers out of range."""


@pytest.mark.parametrize("name", TABLE)
def test_every_address_and_every_segment(name):
    trace = read(name)
    taken = [
        (each["addr"], each["size"]) for each in trace.events if each["action"] == "segment_alloc"
    ]
    sizes = []

    def place(size):
        sizes.append(size)
        return taken[len(sizes) - 1][0]

    log = EventLog()
    allocator = CachingAllocator(log=log)
    allocator._reserve_addresses = place
    restore(allocator, trace.before)
    reused = 0
    for event in trace.events:
        if event["action"] == "alloc":
            before = len(sizes)
            assert allocator.malloc(event["size"]) == event["addr"]
            reused += len(sizes) == before
        elif event["action"] == "free_requested":
            allocator.free(event["addr"])
    segments, expected, reserved = TABLE[name]
    assert sizes == [size for _, size in taken] and len(sizes) == segments
    assert reused == expected
    assert allocator.figures.reserved.peak == allocator.figures.reserved.current == reserved
    assert allocator.figures.allocated.peak == trace.recording.peak().bytes
    assert tiles(allocator.segments()) == tiles(trace.after)


@pytest.mark.parametrize("name", PUBLISHED)
def test_peak_of_a_snapshot_is_what_the_allocator_counts(name):
    trace = read(name)
    allocator = CachingAllocator()
    restore(allocator, trace.before)
    places = {}
    for event in trace.events:
        if event["action"] == "alloc":
            places[event["addr"]] = allocator.malloc(event["size"])
        elif event["action"] == "free_requested":
            allocator.free(places.pop(event["addr"], event["addr"]))
    assert trace.recording.peak("cuda:0").bytes == allocator.figures.allocated.peak


@pytest.mark.parametrize("name", [*PUBLISHED, ODD_LINES])
def test_blocks_at_the_end_of_a_snapshot_are_those_of_its_segments(name):
    snapshot = raw(name)
    log, _ = from_snapshot(snapshot)
    there = {
        log.address[row]: log.size[row]
        for row, kind in enumerate(log.kind)
        if kind in (START, ALLOC) and log.pair[row] < 0
    }
    listed = {}
    for segment in snapshot["segments"]:
        place = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                listed[place] = block["size"]
            place += block["size"]
    assert there == listed


def tiles(segments):
    return {
        (each.address, each.size, each.kind): [
            (block.address, block.size, block.state) for block in each.blocks
        ]
        for each in segments
    }
