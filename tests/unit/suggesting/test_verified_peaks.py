"""What is told of peaks that are another in each repeat."""

import pytest

from tensorlens.records.comparisons import Comparison, Outcome
from tensorlens.records.suggestions import Suggestion, Suggestions
from tensorlens.suggesting import verifying

MIB = 1 << 20
BEFORE, AFTER = (21 * MIB, 23 * MIB, 21 * MIB), (15 * MIB, 15 * MIB, 17 * MIB)


def outcome(name, peaks):
    return Outcome(name, peak_allocated=max(peaks), peaks=peaks)


def verified(monkeypatch, before, after):
    found = Comparison(
        outcomes=(outcome("as it is", before), outcome("SGD", after)),
        baseline="as it is",
        device="cpu",
        provenance="measured",
        program="train.py:make_step",
        framework="tensorflow",
        steps=2,
        repeats=3,
    )
    monkeypatch.setattr(verifying, "compare", lambda step, options, **asked: found)
    sgd = Suggestion("optimizer", "SGD", "", "", 15 * MIB, 6 * MIB, settings=("optimizer=sgd",))
    told = Suggestions((sgd,), device="cpu", peak=21 * MIB, moment="", notes=("before",))
    return verifying.verified(told, "train.py:make_step", {}, repeats=3)


def test_the_median_counts_and_how_far_they_are_apart_is_told(monkeypatch):
    found = verified(monkeypatch, BEFORE, AFTER)
    assert found.measured_peak == 21 * MIB
    assert found["optimizer"].measured_peak == 15 * MIB
    assert found["optimizer"].measured_saving == 6 * MIB
    assert found["optimizer"].off == 0
    assert found.notes == (
        "before",
        "measured in 3 runs, the median counts: as it is 21.00 MiB to 23.00 MiB, SGD 15.00 MiB to"
        " 17.00 MiB",
    )


@pytest.mark.parametrize("peaks", [(MIB,), (MIB, MIB, MIB + 1000)])
def test_peaks_that_are_alike_are_not_told_of(monkeypatch, peaks):
    assert verified(monkeypatch, peaks, peaks).notes == ("before",)
