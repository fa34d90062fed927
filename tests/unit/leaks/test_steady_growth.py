import pytest

from tensorlens.leaks.steady import CERTAIN, LIKELY, NONE, UNCLEAR, Left, growing, judge


def left(*tensors, size=8):
    return {step: Left(n, n * size) for step, n in enumerate(tensors) if n}


def certainty(*tensors):
    return judge(left(*tensors), range(len(tensors))).certainty


def test_every_step_leaving_the_same_is_certain():
    found = judge(left(2, 2, 2, 2), range(4))
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (CERTAIN, 2.0, 16.0)


def test_every_step_leaving_something_is_certain_with_the_mean():
    found = judge(left(1, 3, 2), range(3))
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
    found = judge(left(1, 0, 1, 0, 1, 0), range(6))
    assert (found.certainty, found.tensors_per_step) == (LIKELY, 0.5)
    assert certainty(0, 1, 0, 1, 0, 1) == LIKELY


def test_irregular_steps_are_unclear():
    assert certainty(1, 0, 0, 1, 1) == UNCLEAR


def test_too_few_steps_are_never_certain():
    assert certainty(1, 1) == LIKELY
    assert certainty(1) == UNCLEAR
    assert judge({}, ()).certainty == NONE


def test_steps_without_a_verdict_do_not_count():
    found = judge({0: Left(9, 9), 4: Left(1, 8), 5: Left(1, 8), 6: Left(1, 8)}, (4, 5, 6))
    assert (found.certainty, found.bytes_per_step) == (CERTAIN, 8.0)


def test_what_gets_larger_each_step_grows():
    assert growing([100, 140, 180, 220]).bytes_per_step == 40.0
    assert growing([100, 140, 150, 220]).bytes_per_step == 40.0
    assert growing([100, 140, 140, 220]) is None
    assert growing([100, 140, 180]) is None
    assert growing([]) is None
