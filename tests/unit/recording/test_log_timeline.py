import pytest
from made_logs import Made, slowly_level, user

from tensorlens import Recording
from tensorlens.errors import UsageError
from tensorlens.records import SEGMENT_ALLOC, Context, Segment


def saw(made: Made, teeth: int) -> None:
    """Add teeth of 10, 20, 30 ... bytes over what is there."""
    for tooth in range(1, teeth + 1):
        made.free(made.alloc(10 * tooth, made.stack(user(tooth))))


def test_every_event_of_a_short_log() -> None:
    made = Made()
    made.start(5)
    saw(made, 2)
    timeline = made.recording.timeline()
    assert list(timeline.rows) == [-1, 1, 2, 3, 4]
    assert list(timeline.times) == [0, 1, 2, 3, 4]
    assert list(timeline.totals) == [5, 15, 5, 25, 5]
    assert timeline.by_role == {"other": [5, 15, 5, 25, 5]}
    assert (timeline.peak, timeline.events, timeline.reserved) == (3, 5, None)


def test_roles_add_up() -> None:
    made = Made()
    made.start(100)
    forward = made.stack(user(1), "fc")
    linear = Context(op="aten::addmm", grad=True)
    scratch = made.alloc(8, forward, linear)
    kept = made.alloc(16, forward, linear)
    made.free(scratch, forward, linear)
    made.free(kept)
    timeline = made.recording.timeline("cpu")
    assert timeline.by_role == {
        "activation": [0, 0, 16, 16, 0],
        "other": [100, 100, 100, 100, 100],
        "temporary": [0, 8, 8, 0, 0],
    }
    assert list(timeline.totals) == [100, 108, 124, 116, 100]


@pytest.mark.parametrize("points", [1, 2, 3, 10, 99, 1000])
def test_a_long_log_keeps_what_counts(points: int) -> None:
    made = Made()
    saw(made, 100)
    saw(made, 250)
    saw(made, 50)
    recording = made.recording
    timeline = recording.timeline(points=points)
    assert len(timeline.rows) <= max(points, 2) + 2
    assert timeline.totals[timeline.peak] == 2500 == recording.peak().bytes
    assert timeline.rows[timeline.peak] == recording.peak().row
    assert (timeline.rows[0], timeline.rows[-1]) == (-1, 799)
    assert list(timeline.rows) == sorted(set(timeline.rows))
    for row, total in zip(timeline.rows, timeline.totals, strict=True):
        assert total == slowly_level(made.log, "cpu", row)
    assert timeline.events == 800


def test_each_part_keeps_its_lowest_and_highest() -> None:
    made = Made()
    for sizes in ([7, 50, 3, 9], [1, 2, 90, 4]):
        for size in sizes:
            made.free(made.alloc(size))
    timeline = made.recording.timeline(points=4)
    assert list(zip(timeline.rows, timeline.totals, strict=True)) == [
        (-1, 0),
        (1, 0),
        (2, 50),
        (9, 0),
        (12, 90),
        (15, 0),
    ]


def test_only_what_was_there_at_the_start() -> None:
    made = Made()
    made.start(3)
    made.start(4)
    timeline = made.recording.timeline()
    assert (list(timeline.rows), list(timeline.totals)) == ([-1], [7])
    assert (timeline.peak, timeline.events) == (0, 2)


def test_other_devices_take_no_points() -> None:
    made = Made()
    made.alloc(1)
    made.alloc(10, device="cuda:0")
    made.alloc(2)
    timeline = made.recording.timeline("cpu")
    assert (list(timeline.rows), list(timeline.totals)) == ([-1, 0, 2], [0, 1, 3])
    assert timeline.events == 2


def test_driver_segments_in_the_timeline() -> None:
    made = Made("cuda:0")
    made.alloc(8)
    made.log.append(SEGMENT_ALLOC, "cuda:0", 0, 100, 1)
    made.alloc(8)
    made.log.segments_known = True
    made.log.segments.append(Segment("cuda:0", 0, 300))
    timeline = Recording(made.log).timeline()
    assert timeline.rows == [-1, 0, 2]
    assert timeline.reserved == [200, 200, 300]


def test_no_points_at_all() -> None:
    made = Made()
    made.alloc(1)
    with pytest.raises(UsageError, match="at least 1"):
        made.recording.timeline(points=0)
