"""What names an instant: the number of an event, or a mark."""

import pytest
from made_logs import Made

from tensorlens.errors import UsageError
from tensorlens.records import Mark


class Two:
    """A number of another kind, as those of arrays are."""

    def __index__(self) -> int:
        return 2


def recording():
    made = Made()
    for size in (10, 20, 30):
        made.log.marks.append(Mark("step", len(made.log), 0))
        made.alloc(size)
    made.log.marks.append(Mark("2", len(made.log), 0))
    return made.recording


@pytest.mark.parametrize(
    ("instant", "row", "nbytes"),
    [(-1, -1, 0), (0, 0, 10), (2, 2, 60), (Two(), 2, 60), ("step", 1, 30), ("2", 2, 60)],
)
def test_a_number_or_the_last_mark_of_a_name(instant, row, nbytes):
    found = recording().at(instant)
    assert (found.row, found.bytes) == (row, nbytes)


def test_growth_begins_at_the_first_mark_of_a_name():
    # before the first block to after the third; after the first to before the third
    assert sum(each.nbytes for each in recording().growth("step", "2")) == 60
    assert sum(each.nbytes for each in recording().growth(0, "step")) == 20


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (3, "there is no event 3: the recording has 3, from 0 on"),
        (-2, "there is no event -2: the recording has 3, from 0 on"),
        ("nowhere", "the recording has no mark 'nowhere': it has step, 2"),
        (True, "True is no instant: give the number of an event or the name of a mark"),
        (2.5, "2.5 is no instant: give the number of an event or the name of a mark"),
        (b"step", "b'step' is no instant: give the number of an event or the name of a mark"),
    ],
)
def test_unknown_mark_names(instant, text):
    for ask in (recording().at, recording().growth):
        with pytest.raises(UsageError) as caught:
            ask(instant)
        assert str(caught.value) == text
