import pytest

from tensorlens.leaks import Span, growth_test


def left(*tensors, size=8):
    return {step: growth_test.LeftOfStep(n, n * size) for step, n in enumerate(tensors) if n}


def judged(*tensors, warmup=0):
    """Judge what is left of some steps; one more was made, and may be in use."""
    return growth_test.judge(left(*tensors), Span(len(tensors) + 1, warmup))


def certainty(*tensors):
    found = judged(*tensors)
    return found and found.certainty


def test_every_step_leaving_the_same_is_certain():
    found = judged(2, 2, 2, 2)
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (
        growth_test.CERTAIN,
        2.0,
        16.0,
    )


def test_every_step_leaving_something_is_certain_with_the_mean():
    found = judged(1, 3, 2)
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (
        growth_test.CERTAIN,
        2.0,
        16.0,
    )


@pytest.mark.parametrize(
    "tensors",
    [
        (0, 0, 0, 0),
        (5, 0, 0, 0),  # a state that is made once
        (0, 0, 5, 0),  # a buffer that is made late
        (0, 0, 1, 1),  # the last two batches, or a list that was cleared
        (1, 1, 0, 0),  # something that stopped
        (0, 5, 0, 0, 0, 1, 1),  # a state that is made once, and batches ahead
    ],
)
def test_blocks_of_some_steps_are_no_leak(tensors):
    assert certainty(*tensors) is None


def test_every_other_step_is_likely():
    found = judged(1, 0, 1, 0, 1)
    assert (found.certainty, found.tensors_per_step) == (growth_test.LIKELY, 0.5)
    assert certainty(0, 1, 0, 1, 0, 1) == growth_test.LIKELY


def test_the_warm_up_is_part_of_a_pattern():
    found = growth_test.judge(left(0, 2, 0, 2, 0, 2, 0, 2), Span(8, 2))
    assert (found.certainty, found.tensors_per_step, found.bytes_per_step) == (
        growth_test.LIKELY,
        1.0,
        8.0,
    )
    assert judged(1, 0, 0, 1, 0, 0, 1, warmup=2).tensors_per_step == 1 / 3


def test_the_last_step_confirms_a_pattern():
    # of step 7 it is not known whether it stays
    found = growth_test.judge(left(0, 3, 0, 0, 3, 0, 0, 1), Span(8, 2))
    assert (found.certainty, found.tensors_per_step) == (growth_test.LIKELY, 1.0)
    assert growth_test.judge(left(0, 0, 0, 0, 3, 0, 0, 1), Span(8, 2)) is None


def test_irregular_steps_are_unclear():
    assert certainty(1, 0, 0, 1, 1) == growth_test.UNCLEAR


def test_too_few_steps_are_never_certain():
    assert certainty(1, 1) == growth_test.LIKELY
    assert certainty(1) == growth_test.UNCLEAR
    assert growth_test.judge({}, Span(1, 0)) is None


def test_steps_without_a_verdict_do_not_count():
    found = judged(9, 0, 0, 0, 1, 1, 1, warmup=4)
    assert (found.certainty, found.bytes_per_step) == (growth_test.CERTAIN, 8.0)


def test_growing_block_is_growth():
    assert growth_test.growing([100, 140, 180, 220]).bytes_per_step == 40.0
    assert growth_test.growing([100, 140, 150, 220]).bytes_per_step == 40.0
    assert growth_test.growing([100, 140, 140, 220]) is None
    assert growth_test.growing([100, 140, 180]) is None
    assert growth_test.growing([]) is None


def test_replaced_blocks_are_renewed():
    assert growth_test.is_renewed([20, 20, 20, 20], 3)
    assert growth_test.is_renewed([20, 19, 18, 17], 3)
    assert not growth_test.is_renewed([20, 21, 22, 23], 3)
    # something else of the line was freed once
    assert not growth_test.is_renewed([20, 21, 15, 16, 17], 4)


@pytest.mark.parametrize(
    "levels",
    [
        range(12),
        [0, 2, 1, 3, 2, 4, 3, 5, 4, 6, 5, 7],
        # a saw whose teeth begin higher and higher
        [base + tooth for base in range(0, 50, 5) for tooth in (0, 4, 8)],
        [0, 1, 1, 2, 3, 3, 4],
    ],
)
def test_rising_levels_climb(levels):
    assert growth_test.climbs([*levels])


@pytest.mark.parametrize(
    "levels",
    [
        [],
        [5] * 12,
        # saws, from any place of a tooth on
        *([(at + place) % 5 for at in range(30)] for place in range(5)),
        *([(at + place) % 10 for at in range(12)] for place in range(1, 10)),
        # what fills up and is full, or is made once, or in a few steps
        [2, 3, 4, 5, 6, 6],
        [2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7, 7],
        [0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9],
        [9, 8, 7, 6, 5, 4],
    ],
)
def test_saws_jumps_and_what_is_full_do_not_climb(levels):
    assert not growth_test.climbs(levels)
    assert not growth_test.may_climb(levels)


def test_too_few_levels_do_not_climb():
    assert not growth_test.climbs([0, 1, 2])


@pytest.mark.parametrize(
    "levels",
    [
        # every second, every third step
        [0, 0, 1, 1, 2, 2],
        [0, 0, 0, 1, 1, 1, 2],
        [0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3],
        # drained now and then, but never as far as before
        [4, 6, 3, 5, 7, 9, 6, 8],
        [0, 2, 4, 2],
        # of four feet two are in the wrong order
        [2, 4, 2, 5, 3, 6, 2, 7, 4, 8],
        # at no rhythm, and none of late: what each step does by chance
        [1, 2, 2, 2, 3, 4, 4, 5, 6, 6, 7, 7, 8, 8, 9, 9, 9, 9, 9, 9],
        [0, 4, 8, 9, 12, 10, 11, 13, 13, 14, 14, 15, 17, 16, 17, 17, 18, 17, 17, 15],
    ],
)
def test_occasional_rises_may_climb(levels):
    assert growth_test.may_climb(levels)


@pytest.mark.parametrize(
    "levels",
    [
        # it has stopped
        [0, 1, 2, 2],
        [0, 0, 1, 1, 2, 2, 2, 2],
        # one rise is a state that is made late
        [0, 0, 5, 5],
        # it came down to where it was
        [2, 4, 6, 2, 4],
        # the beginning was in the middle of a tooth
        [3, 4, 0, 2, 4, 0, 2],
        # feet in any order
        [5, 9, 6, 9, 3, 9, 5, 9, 4, 9],
        # saws of any length
        *([(at + place) % tooth for at in range(31)] for tooth in (4, 7, 12) for place in (1, 3)),
    ],
)
def test_falling_or_flat_levels_do_not_climb(levels):
    assert not growth_test.may_climb(levels)


def test_as_many_blocks_may_get_larger():
    assert growth_test.may_enlarge([1] * 5, [10, 10, 20, 20, 30])
    # after they have become as many as there are
    assert growth_test.may_enlarge([0, 1, 2, 2, 2, 2], [0, 10, 20, 30, 40, 50])
    assert not growth_test.may_enlarge([1] * 5, [10, 30, 20, 40, 50])
    assert not growth_test.may_enlarge([0, 1, 2, 3, 4, 5], [0, 10, 20, 30, 40, 50])


def test_stretches_of_several_steps_are_told_by_the_step():
    found = growth_test.judge(left(4, 4, 4, 4, 4), Span(48, 0, 8))
    assert (found.tensors_per_step, found.bytes_per_step) == (0.5, 4.0)
    assert found.reason == "each of 5 stretches of 8 steps left the same number of tensors behind"
    assert growth_test.growing([0, 80, 160, 240], 8).bytes_per_step == 10.0
