"""Traces from real machines: the same requests must give the same addresses and segments."""

import pytest
from real_traces import read

from tensorlens.allocators import CachingAllocator
from tensorlens.records.events import EventLog
from tensorlens.records.recordings import Recording

# segments taken during the trace, blocks from memory held already, bytes reserved at the end
TABLE = {
    "attention_from_empty.pickle": (9, 27, 3_781_165_056),
    "lm_forward_fp32.pickle": (0, 681, 610_271_232),
    "cnn_training.pickle": (7, 1928, 134_217_728),
    "lora_8bit.pickle": (152, 3353, 6_471_811_072),
}


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
    allocator = CachingAllocator(log=log, place=place)
    allocator.restore(trace.before)
    reused = 0
    for event in trace.events:
        if event["action"] == "alloc":
            before = len(sizes)
            assert allocator.malloc(event["size"], event["stream"]) == event["addr"]
            reused += len(sizes) == before
        elif event["action"] == "free_requested":
            allocator.free(event["addr"])
    segments, expected, reserved = TABLE[name]
    assert sizes == [size for _, size in taken] and len(sizes) == segments
    assert reused == expected
    assert allocator.figures.reserved.peak == allocator.figures.reserved.current == reserved
    assert allocator.figures.allocated.peak == trace.recording.peak().held
    assert tiles(allocator.segments()) == tiles(trace.after)
    allocator.write_segments()
    assert Recording(log).fragmentation() == allocator.fragmentation()


def tiles(segments):
    return {
        (each.address, each.size, each.kind, each.stream): [
            (block.address, block.size, block.state) for block in each.blocks
        ]
        for each in segments
    }
