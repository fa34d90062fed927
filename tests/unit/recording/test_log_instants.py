import pickle

import pytest
from made_logs import Made, user

from tensorlens import Recording
from tensorlens.errors import UsageError
from tensorlens.records import (
    ALLOC,
    OOM,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    START,
    Context,
    EventLog,
    Label,
    Origin,
    Segment,
)


def three_blocks() -> Made:
    """100 B from before; then 30 and 20 B handed out, 30 freed, 30 handed out."""
    made = Made()
    made.start(100)
    first = made.alloc(30, made.stack(user(1)))
    made.alloc(20, made.stack(user(2)))
    made.free(first)
    made.alloc(30, made.stack(user(3)))
    return made


def test_the_first_of_equal_peaks() -> None:
    peak = three_blocks().recording.peak()
    assert (peak.bytes, peak.row, peak.time_ns) == (150, 2, 2)
    assert [block.row for block in peak.tensors] == [0, 1, 2]
    assert {line and line.lineno: size for line, size in peak.by_line.items()} == {
        None: 100,
        1: 30,
        2: 20,
    }
    assert peak.by_role == {"other": 150}
    assert peak.by_module == {None: 150}
    assert peak.by_stack == {-1: 100, 0: 30, 1: 20}
    assert peak.by_phase == {"other": 150}
    assert [block.age_ns for block in peak.tensors] == [None, 1, 0]


def test_a_recording_that_was_looked_at_is_pickled() -> None:
    recording = three_blocks().recording
    assert str(recording)
    again = pickle.loads(pickle.dumps(recording))
    assert type(again) is Recording
    assert (again.to_dict(), str(again)) == (recording.to_dict(), str(recording))


def test_instant_of_any_event() -> None:
    recording = three_blocks().recording
    assert [recording.at(row).bytes for row in range(-1, 5)] == [100, 100, 130, 150, 120, 150]
    assert [block.row for block in recording.at(4).tensors] == [0, 4, 2]
    for row in (-2, 5):
        with pytest.raises(UsageError, match="no event"):
            recording.at(row)


def test_blocks_from_before_are_resident_at_the_start() -> None:
    made = Made()
    for _ in range(3):
        made.start(10)
    made.free(0)
    recording = made.recording
    assert (recording.peak().bytes, recording.peak().row, recording.peak().time_ns) == (30, -1, 0)
    assert [recording.at(row).bytes for row in range(-1, 4)] == [30, 30, 30, 30, 20]


def test_frees_of_blocks_that_are_not_in_the_log() -> None:
    made = Made()
    made.log.append(2, "cpu", 4711, 50, 0)
    made.alloc(10)
    assert made.recording.peak().bytes == 10
    assert made.recording.at(0).bytes == 0


def test_devices_are_apart() -> None:
    made = Made()
    made.alloc(10)
    made.alloc(30, device="cuda:0")
    made.alloc(5)
    recording = made.recording
    assert (recording.peak().device, recording.peak().bytes) == ("cuda:0", 30)
    assert (recording.peak("cpu").bytes, recording.peak("cpu").row) == (15, 2)
    assert recording.at(2, "cuda:0").bytes == 30
    with pytest.raises(UsageError, match="no device 'mps': it has cpu, cuda:0"):
        recording.peak("mps")


def test_instants_of_an_empty_recording() -> None:
    recording = Recording(EventLog())
    for question in (recording.peak, recording.timeline, recording.churn, recording.fragmentation):
        with pytest.raises(UsageError, match="no events"):
            question()
    assert recording.backward() == ()
    assert recording.growth() == ()


def test_only_a_failed_request() -> None:
    made = Made()
    made.log.append(OOM, "cpu", 0, 1 << 40, 0)
    peak = made.recording.peak()
    assert (peak.bytes, peak.row, list(peak.tensors), peak.by_line) == (0, -1, [], {})


def test_the_highest_was_dropped() -> None:
    recording = three_blocks()
    dropped = EventLog()
    deep = dropped.stacks.add([user(7), user(8)])
    dropped.append(START, "cpu", 1, 900, 0, deep, Context(op="aten::mm", grad=True))
    dropped.append(START, "cpu", 2, 50, 0)
    origin = Origin(dropped=12, dropped_peaks={"cpu": dropped})
    made = Recording(recording.log, origin)
    for _ in range(2):
        peak = made.peak()
        assert (peak.bytes, peak.row) == (950, -1)
        assert [block.nbytes for block in peak.tensors] == [900, 50]
        assert peak.by_role == {"activation": 900, "other": 50}
        (stack, _) = peak.by_stack
        assert made.log.stacks.of(stack) == (user(7), user(8))
    # as much as was handed out by the same events
    assert made.churn().peak == 150
    assert Recording(recording.log, Origin(dropped_peaks={})).peak().bytes == 150


def test_allocator_levels_at_instants() -> None:
    made = Made("cuda:0")
    log = made.log
    made.start(512)
    log.append(SEGMENT_ALLOC, "cuda:0", 0, 2 << 20, 1)
    row = made.alloc(1024)
    log.held[row] = 1536
    log.append(SEGMENT_FREE, "cuda:0", 0, 4 << 20, 3)
    recording = made.recording
    assert recording.peak().held == 512 + 1536
    assert recording.peak().reserved is None
    log.segments_known = True
    log.segments.append(Segment("cuda:0", 0, 20 << 20))
    recording = Recording(log)
    levels = [recording.at(row).reserved for row in range(-1, 4)]
    assert levels == [22 << 20, 22 << 20, 24 << 20, 24 << 20, 20 << 20]
    assert recording.at(0).held == 512


def test_the_cpu_has_no_segments() -> None:
    peak = three_blocks().recording.peak()
    assert (peak.held, peak.reserved) == (None, None)


def test_blocks_are_a_sequence() -> None:
    tensors = three_blocks().recording.peak().tensors
    assert [block.row for block in tensors[1:]] == [1, 2]
    assert tensors[-1].row == 2
    assert len(tensors) == 3
    assert list(tensors) == [tensors[0], tensors[1], tensors[2]]
    assert tensors == list(tensors)


def test_ages_of_freed_blocks() -> None:
    made = three_blocks()
    (freed,) = made.recording.blocks([1])
    assert freed.age_ns == 2
    with pytest.raises(UsageError, match="event 3 hands out no block"):
        made.recording.blocks([3])


def test_equal_questions_have_one_answer() -> None:
    recording = three_blocks().recording
    assert recording.peak() is recording.peak()
    assert recording.timeline() is recording.timeline()
    assert recording.at(2) is recording.at(2)


def test_allocations_that_were_never_freed_may_be_found_anywhere() -> None:
    made = Made()
    made.log.append(ALLOC, "cpu", 1, 8, 0)
    made.log.append(ALLOC, "cpu", 1, 8, 1)
    assert made.recording.peak().bytes == 16


def test_a_dropped_peak_has_labels_of_its_own() -> None:
    made, dropped = three_blocks(), EventLog()
    for row, name in ((1, "a"), (2, "b"), (4, "b")):
        made.log.name(row, Label(name, "input"))
    for row, name in enumerate(("c", "b", "c")):
        dropped.append(START, "cpu", row, 1000, 0)
        dropped.name(row, Label(name, "buffer" if name == "c" else "input"))
    recording = Recording(made.log, Origin(dropped_peaks={"cpu": dropped}))
    assert [block.name for block in recording.peak().tensors] == ["c", "b", "c"]
    assert recording.peak().by_role == {"buffer": 2000, "input": 1000}
    assert [block.name for block in recording.at(4).tensors][1:] == ["b", "b"]


def test_a_dropped_peak_has_forward_lines_of_its_own() -> None:
    made, dropped = three_blocks(), EventLog()
    forward = dropped.stacks.add([user(7), user(8)])
    node = Context(node="MulBackward0", forward=forward)
    dropped.append(START, "cpu", 1, 900, 0, context=node)
    peak = Recording(made.log, Origin(dropped_peaks={"cpu": dropped})).peak()
    assert [(block.charged.lineno, block.role) for block in peak.tensors] == [(7, "gradient")]
