import pytest
from made_logs import Made, user

from tensorlens import Recording
from tensorlens.errors import UsageError
from tensorlens.records import GRAPH_CALL, Mark


def two_epochs() -> Made:
    made = Made()
    made.start(100)
    load, keep = made.stack(user(1, "load")), made.stack(user(2, "keep"))
    for _ in range(2):
        made.log.marks.append(Mark("epoch", len(made.log), len(made.log)))
        batch = made.alloc(50, load)
        made.alloc(7, keep)
        made.free(batch)
    made.log.marks.append(Mark("end", len(made.log), len(made.log)))
    return made


def grown(recording: Recording, *span: str | int | None) -> list[tuple[int, int, int]]:
    return [(each.line.lineno, each.nbytes, each.blocks) for each in recording.growth(*span)]


def test_growth_of_the_whole_recording() -> None:
    recording = two_epochs().recording
    assert grown(recording) == [(2, 14, 2)]
    (growth,) = recording.growth()
    assert growth.role == "other"


def test_growth_between_marks_and_events() -> None:
    recording = two_epochs().recording
    assert grown(recording, "epoch", "end") == [(2, 14, 2)]
    assert grown(recording, "epoch", "epoch") == [(2, 7, 1)]
    assert grown(recording, -1, 2) == [(1, 50, 1), (2, 7, 1)]
    assert grown(recording, 5, 6) == [(1, -50, -1)]
    assert grown(recording, 4, 1) == [(1, 0, 0), (2, -7, -1)][1:]
    assert grown(recording, 1, 1) == []


def test_the_same_bytes_in_other_blocks_are_no_growth() -> None:
    made = Made()
    stack = made.stack(user(1))
    first = made.alloc(8, stack)
    made.free(first)
    made.alloc(8, stack)
    assert made.recording.growth(0, 2) == ()


def test_change_at_unknown_instant() -> None:
    recording = two_epochs().recording
    with pytest.raises(UsageError, match="no mark 'step': it has epoch, end"):
        recording.growth("step")
    with pytest.raises(UsageError, match="no event 7: the recording has 7"):
        recording.growth(0, 7)
    made = Made()
    # the program did not give it
    made.log.marks.append(Mark(GRAPH_CALL, 0, 0))
    with pytest.raises(UsageError, match="no mark 'x': it has none"):
        made.recording.growth("x")
    made.log.dropped_marks.append("x")
    with pytest.raises(UsageError, match="the mark 'x' were dropped: it has none"):
        made.recording.growth("x")


def test_churn_by_line() -> None:
    churn = two_epochs().recording.churn()
    assert (churn.device, churn.handed_out, churn.allocations) == ("cpu", 114, 4)
    assert churn.peak == 100 + 50 + 7 + 7
    assert churn.ratio == 114 / 164
    by_line = {line.lineno: nbytes for line, nbytes in churn.by_line.items()}
    assert list(by_line.items()) == [(1, 100), (2, 14)]


def test_churn_of_nothing() -> None:
    made = Made()
    made.alloc(0)
    assert made.recording.churn().ratio == 0.0
