"""What is told of peaks that are another in each repeat."""

import pytest

from tensorlens import Comparison, Suggestions
from tensorlens.planning.compare import Outcome
from tensorlens.planning.suggest import Suggestion, verification

MIB = 1 << 20
BEFORE, AFTER = (21 * MIB, 23 * MIB, 21 * MIB), (15 * MIB, 15 * MIB, 17 * MIB)


def outcome(name, peaks, step_peaks=(), **more):
    return Outcome(name, peak_allocated=max(peaks), peaks=peaks, step_peaks=step_peaks, **more)


def verified(*outcomes, by_step=False):
    found = Comparison(
        outcomes=outcomes,
        baseline="as it is",
        device="cpu",
        provenance="measured",
        program="train.py:make_step",
        framework="tensorflow",
        steps=2,
        repeats=3,
    )
    sgd = Suggestion("optimizer", "SGD", "", "", 15 * MIB, 6 * MIB, settings=("optimizer=sgd",))
    told = Suggestions((sgd,), device="cpu", peak=21 * MIB, moment="", notes=("before",))
    return verification.verified(told, lambda options, **asked: found, by_step=by_step)


def test_the_median_counts_and_how_far_they_are_apart_is_told():
    found = verified(outcome("as it is", BEFORE), outcome("SGD", AFTER))
    assert found.measured_peak == 21 * MIB
    assert found["optimizer"].measured_peak == 15 * MIB
    assert found["optimizer"].measured_saving == 6 * MIB
    assert found["optimizer"].off == 0
    assert found.notes == (
        "before",
        "measured in 3 runs, the median of their peaks counts: as it is 21.00 MiB to 23.00 MiB,"
        " SGD 15.00 MiB to 17.00 MiB",
    )


@pytest.mark.parametrize("peaks", [(MIB,), (MIB, MIB, MIB + 1000)])
def test_peaks_that_are_alike_are_not_told_of(peaks):
    outcomes = outcome("as it is", peaks), outcome("SGD", peaks)
    assert verified(*outcomes).notes == ("before",)


def test_the_median_step_counts_where_the_order_is_another_in_each():
    before = outcome("as it is", BEFORE, (20 * MIB, 21 * MIB, 20 * MIB))
    after = outcome("SGD", AFTER, (13 * MIB, 13 * MIB, 13 * MIB))
    found = verified(before, after, by_step=True)
    assert found.measured_peak == 20 * MIB
    assert found["optimizer"].measured_saving == 7 * MIB
    assert found.notes[1:] == (
        "measured in 3 runs, the median of their median steps counts: as it is 20.00 MiB to"
        " 21.00 MiB",
    )


def test_times_of_several_runs_that_are_lost_in_noise_are_not_those_of_one_run():
    before = outcome("as it is", BEFORE, seconds=(0.01, 0.01, 0.01))
    found = verified(before, outcome("SGD", AFTER, seconds=(0.01, 0.04, 0.0025)))
    assert found["optimizer"].measured_time is None
    assert "time: n/a, lost in noise, ask for more --repeats" in str(found)
    assert "one run" not in str(found)
