"""The events that the allocator writes, and what recordings make of them."""

import pytest
from restored import restore

from tensorlens import Recording
from tensorlens.planning.allocators import CachingAllocator
from tensorlens.records import Context, EventLog, Frame, Rules, Segment, SegmentBlock
from tensorlens.render import TextRenderer, html_page

MIB = 1 << 20
BASE = 1 << 44


def told(log):
    return [(event.action, event.address, event.nbytes) for event in log]


def made(settings=None, **options):
    log = EventLog()
    allocator = CachingAllocator(settings, log=log, **options)
    stack = log.stacks.add([Frame("train.py", 3, "step")])
    first = allocator.malloc(11 * MIB, stack=stack, context=Context(op="aten::mm"))
    second = allocator.malloc(1000, stack=stack)
    allocator.free(first, stack=stack)
    allocator.malloc(12 * MIB)
    allocator.free(second)
    allocator.empty_cache()
    allocator.write_segments()
    return allocator, log


def test_events_in_their_order():
    _, log = made()
    assert told(log) == [
        ("segment_alloc", BASE, 12 * MIB),
        ("alloc", BASE, 11 * MIB),
        ("segment_alloc", BASE + 12 * MIB, 2 * MIB),
        ("alloc", BASE + 12 * MIB, 1024),
        ("free", BASE, 11 * MIB),
        ("alloc", BASE, 12 * MIB),
        ("free", BASE + 12 * MIB, 1024),
        ("segment_free", BASE + 12 * MIB, 2 * MIB),
    ]
    # 11 MiB were given all of their segment
    assert log.held == {1: 12 * MIB}
    assert [event.pair for event in log] == [-1, 4, -1, 6, 1, -1, 3, -1]
    assert log[1].context.op == "aten::mm" and log[1].stack[0].lineno == 3
    assert log[2].stack == log[0].stack == log[1].stack
    assert log.segments_known
    [segment] = log.segments
    assert (segment.size, segment.kind, segment.expandable) == (12 * MIB, "large", False)


def test_large_segments_go_back_first_and_the_smaller_of_them_before():
    log = EventLog()
    allocator = CachingAllocator(log=log)
    for place in [allocator.malloc(size) for size in (1, 30 * MIB, 12 * MIB)]:
        allocator.free(place)
    before = len(log)
    allocator.empty_cache()
    assert [event.nbytes for event in log][before:] == [12 * MIB, 30 * MIB, 2 * MIB]


@pytest.mark.parametrize("expandable", [False, True])
def test_views_agree_with_the_allocator(expandable):
    allocator, log = made(Rules(expandable_segments=expandable))
    recording = Recording(log)
    figures = allocator.figures
    peak = recording.peak()
    assert peak.bytes == peak.held == figures.allocated.peak == 12 * MIB + 1024
    assert peak.reserved == figures.reserved.peak == (22 if expandable else 14) * MIB
    assert max(recording.timeline().reserved) == figures.reserved.peak
    assert "12.00 MiB" in TextRenderer().render(recording)
    assert "cuda:0" in html_page(recording)


def test_two_devices_in_a_log():
    log = EventLog()
    both = [CachingAllocator(log=log, device=f"cuda:{number}") for number in range(2)]
    for allocator in (*both, both[0]):
        allocator.malloc(MIB)
        allocator.write_segments()
    assert [(each.device, each.size) for each in log.segments] == [
        ("cuda:1", 2 * MIB),
        ("cuda:0", 2 * MIB),
    ]
    assert [Recording(log).peak(each).bytes for each in ("cuda:0", "cuda:1")] == [2 * MIB, MIB]


def test_beginning_from_a_snapshot():
    blocks = (
        SegmentBlock(BASE, 12 * MIB, 11 * MIB, "active_allocated"),
        SegmentBlock(BASE + 12 * MIB, 3 * MIB, 0, "inactive"),
        SegmentBlock(BASE + 15 * MIB, 5 * MIB, 5 * MIB, "active_allocated"),
    )
    log = EventLog()
    allocator = CachingAllocator(log=log)
    restore(allocator, [Segment("cuda:0", BASE, 20 * MIB, blocks=blocks)])
    assert told(log) == [
        ("start", BASE, 11 * MIB),
        ("start", BASE + 15 * MIB, 5 * MIB),
    ]
    assert log.held == {0: 12 * MIB}
    figures = allocator.figures
    assert (figures.allocated.peak, figures.requested.peak) == (17 * MIB, 16 * MIB)
    assert figures.reserved.peak == 20 * MIB
    assert allocator.malloc(2 * MIB) == BASE + 12 * MIB
    # later segments do not lie over it
    assert allocator.malloc(30 * MIB) == BASE + 20 * MIB
    allocator.free(BASE)
    assert [event.nbytes for event in log][-1] == 11 * MIB
    # what was left of the 3 MiB was too little to be split off
    assert [block.size for block in allocator.segments()[0].blocks] == [
        12 * MIB,
        3 * MIB,
        5 * MIB,
    ]
