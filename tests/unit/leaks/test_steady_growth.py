import pytest

from tensorlens.leaks.steady import (
    CERTAIN,
    LIKELY,
    NONE,
    UNCLEAR,
    Left,
    Span,
    growing,
    is_renewed,
    judge,
)


def left(*tensors, size=8):
    return {step: Left(n, n * size) for step, n in enumerate(tensors) if n}


def judged(*tensors, warmup=0):
    """Judge what is left of some steps; one more was made, and may be in use."""
    return judge(left(*tensors), Span(len(tensors) + 1, warmup))


def certainty(*tensors):
    return judged(*tensors).certainty


def test_every_step_leaving_the_same_is_certain():
    found = judged(2, 2, 2, 2)
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (CERTAIN, 2.0, 16.0)


def test_every_step_leaving_something_is_certain_with_the_mean():
    found = judged(1, 3, 2)
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (CERTAIN, 2.0, 16.0)


@pytest.mark.parametrize(
    "tensors",
    [
        (0, 0, 0, 0),
        (5, 0, 0, 0),  # a state that is made once
        (0, 0, 5, 0),  # a buffer that is made late
        (0, 0, 1, 1),  # the last two batches, or a list that was cleared
        (1, 1, 0, 0),  # something that stopped
    ],
)
def test_what_not_all_steps_leave_is_no_leak(tensors):
    assert certainty(*tensors) == NONE


def test_every_other_step_is_likely():
    found = judged(1, 0, 1, 0, 1)
    assert (found.certainty, found.tensors_per_step) == (LIKELY, 0.5)
    assert certainty(0, 1, 0, 1, 0, 1) == LIKELY


def test_the_warm_up_is_part_of_a_pattern():
    found = judge(left(0, 2, 0, 2, 0, 2, 0, 2), Span(8, 2))
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (LIKELY, 1.0, 8.0)
    assert judged(1, 0, 0, 1, 0, 0, 1, warmup=2).tensors_per_step == 1 / 3


def test_the_last_step_confirms_a_pattern():
    # of step 7 it is not known whether it stays
    found = judge(left(0, 3, 0, 0, 3, 0, 0, 1), Span(8, 2))
    assert (found.certainty, found.tensors_per_step) == (LIKELY, 1.0)
    assert judge(left(0, 0, 0, 0, 3, 0, 0, 1), Span(8, 2)).certainty == NONE


def test_irregular_steps_are_unclear():
    assert certainty(1, 0, 0, 1, 1) == UNCLEAR


def test_too_few_steps_are_never_certain():
    assert certainty(1, 1) == LIKELY
    assert certainty(1) == UNCLEAR
    assert judge({}, Span(1, 0)).certainty == NONE


def test_steps_without_a_verdict_do_not_count():
    found = judged(9, 0, 0, 0, 1, 1, 1, warmup=4)
    assert (found.certainty, found.bytes_per_step) == (CERTAIN, 8.0)


def test_what_gets_larger_each_step_grows():
    assert growing([100, 140, 180, 220]).bytes_per_step == 40.0
    assert growing([100, 140, 150, 220]).bytes_per_step == 40.0
    assert growing([100, 140, 140, 220]) is None
    assert growing([100, 140, 180]) is None
    assert growing([]) is None


def test_what_takes_the_place_of_older_ones_is_renewed():
    assert is_renewed([20, 20, 20, 20], 3)
    assert is_renewed([20, 19, 18, 17], 3)
    assert not is_renewed([20, 21, 22, 23], 3)
    # something else of the line was freed once
    assert not is_renewed([20, 21, 15, 16, 17], 4)
