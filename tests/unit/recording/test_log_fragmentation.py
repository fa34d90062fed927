from made_logs import Made

from tensorlens.records import Segment, SegmentBlock


def block(size: int, state: str, requested: int = 0) -> SegmentBlock:
    return SegmentBlock(0, size, requested, state)


USED, PENDING, FREE = "active_allocated", "active_pending_free", "inactive"


def test_used_and_free() -> None:
    made = Made("cuda:0")
    made.alloc(1)
    log = made.log
    log.segments_known = True
    log.segments += [
        Segment("cuda:0", 0, 100, blocks=(block(60, USED, 50), block(40, FREE))),
        Segment("cuda:0", 0, 200, blocks=(block(200, FREE),)),
        Segment("cuda:0", 0, 30, blocks=(block(10, PENDING, 9), block(5, FREE))),
        Segment("cuda:1", 0, 999, blocks=(block(999, FREE),)),
    ]
    found = made.recording.fragmentation()
    assert (found.device, found.reserved, found.segments) == ("cuda:0", 330, 3)
    assert (found.held, found.requested) == (70, 59)
    assert (found.free, found.largest_free, found.inactive_split) == (260, 200, 60)


def test_unknown_fragmentation() -> None:
    made = Made()
    made.alloc(1)
    assert made.recording.fragmentation() is None
    made.log.segments_known = True
    assert made.recording.fragmentation() is None
