"""What is told where the oldest events were dropped: blocks they made are in START rows."""

import pytest
from made_logs import Made, user

from tensorlens import Recording
from tensorlens.errors import UsageError
from tensorlens.records import START, Context, EventLog, Label, Origin

MM = Context(op="aten::mm", outer="aten::linear", grad=True)


def ring() -> Recording:
    """100 B from before; 40 made after 3 ns and dropped; then kept 20 after 7 ns, freed after 9.

    Among the dropped the highest instant was after 2 ns: the 100 B, 50 made then and 30 the
    nanosecond before.
    """
    made, dropped = Made(), EventLog()
    log = made.log
    made.start(100)
    log.append(START, "cpu", 2, 40, 3, made.stack(user(4), "fc"), MM)
    log.append(1, "cpu", 3, 20, 7, made.stack(user(5)))
    log.append(2, "cpu", 3, 20, 9)
    log.dropped_marks.append("early")
    outer = dropped.stacks.push(-1, user(6))
    dropped.append(START, "cpu", 9, 30, 1, outer, Context(op="aten::empty"))
    dropped.append(START, "cpu", 1, 100, 0)
    dropped.append(START, "cpu", 8, 50, 2, outer, MM)
    return Recording(log, Origin(dropped=12, dropped_peaks={"cpu": dropped}))


def test_the_peak_says_what_made_its_blocks_and_how_old_they_are() -> None:
    peak = ring().peak()
    assert (peak.bytes, peak.row, peak.time_ns, peak.dropped) == (180, -1, 2, True)
    assert [(block.name, block.role, block.age_ns) for block in peak.tensors] == [
        ("before the recording", "other", None),
        ("aten::linear at train.py:6", "activation", 0),
        ("aten::empty at train.py:6", "other", 1),
    ]


@pytest.mark.parametrize("row", [-1, 0, 1])
def test_leftover_of_dropped_events(row: int) -> None:
    moment = ring().at(row)
    # the first kept event
    assert (moment.bytes, moment.time_ns, moment.dropped) == (140, 7, False)
    assert [(block.name, block.age_ns) for block in moment.tensors] == [
        ("before the recording", None),
        ("fc: aten::linear", 4),
    ]


def test_ages_go_on() -> None:
    assert [block.age_ns for block in ring().at(3).tensors] == [None, 6]


def test_the_timeline_begins_with_what_was_kept() -> None:
    timeline = ring().timeline()
    assert (timeline.rows, timeline.times, timeline.totals) == (
        [-1, 2, 3],
        [7, 7, 9],
        [140, 160, 140],
    )
    assert timeline.peak == 1


def test_churn_is_of_the_events_that_were_kept() -> None:
    churn = ring().churn()
    assert (churn.handed_out, churn.allocations, churn.peak) == (20, 1, 160)


def test_a_mark_that_was_dropped_is_told_from_one_never_made() -> None:
    recording = ring()
    for question in (recording.growth, recording.at):
        with pytest.raises(UsageError, match="events up to the mark 'early' were dropped"):
            question("early")
        with pytest.raises(UsageError, match="has no mark 'never'"):
            question("never")


def test_an_only_row_left_of_the_dropped() -> None:
    log = EventLog()
    log.append(START, "cpu", 1, 8, 5)
    moment = Recording(log, Origin(dropped=2)).at(-1)
    assert (moment.time_ns, [block.age_ns for block in moment.tensors]) == (5, [0])


def test_source_is_left_out_of_the_dropped_too() -> None:
    log, dropped = EventLog(), EventLog()
    dropped.labels = log.labels
    label = log.labels.number(Label("step(): load('patients.csv')[0]", "input"))
    for each in (log, dropped):
        each.label[each.append(START, "cpu", 1, 100, 0)] = label
    clean = Recording(log, Origin(dropped=1, dropped_peaks={"cpu": dropped})).without_source()
    assert [each.name for each in clean.origin.dropped_peaks["cpu"].labels] == ["input"]
    assert "patients" not in clean.to_json()
