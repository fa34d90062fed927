import sys

import pytest

from tensorlens import Estimate, Recording, TensorlensError, scaling
from tensorlens.errors import UsageError
from tensorlens.planning.estimate import OPTIMIZER, PASS, SETUP, Range, fit_curve, peaks_by_place
from tensorlens.records import ALLOC, FREE, Context, EventLog, Label, Mark

# the package has a function of the same name
module = sys.modules[fit_curve.__module__]

KIB, MIB = 1024, 1024**2
GPU = "cuda:0"


def made(forward: int, optimizer: int, weights: int = 4 * MIB) -> Estimate:
    """A step whose forward and whose optimizer's step have so much at their highest."""
    log = EventLog()
    address = 1 << 40

    def alloc(size: int, phase: str) -> int:
        return log.append(ALLOC, GPU, address + len(log), size, 0, context=Context(phase=phase))

    def free(row: int) -> None:
        log.append(FREE, GPU, log.address[row], log.size[row], 0)

    log.name(alloc(weights, "other"), Label("w", "parameter"))
    log.marks.append(Mark("step 1", len(log), 0))
    free(alloc(forward - weights, "forward"))
    highest = alloc(optimizer - weights, "optimizer")
    peak = Range.exactly(max(forward, optimizer))
    row = highest if optimizer > forward else 1
    return Estimate(GPU, None, peak, peak, peak, (), (), Recording(log), row)


class Asked:
    """A program whose runs are made by hand."""

    def __init__(self, runs, value, fails_above):
        self.runs, self.value, self.fails_above = runs, value, fails_above

    def with_argument(self, value, name):
        assert name == "batch"
        return Asked(self.runs, value, self.fails_above)

    def run(self, worker):
        if self.fails_above is not None and self.value > self.fails_above:
            raise TensorlensError("index out of range\nTraceback")
        return self.runs(self.value)


@pytest.fixture
def program(monkeypatch):
    def use(runs, fails_above=None):
        monkeypatch.setattr(module, "request", lambda *_, **__: Asked(runs, 0, fails_above))

    return use


def test_each_part_of_a_run_has_its_peak() -> None:
    found = peaks_by_place(made(10 * MIB, 7 * MIB))
    assert found == {SETUP: 4 * MIB, PASS: 10 * MIB, OPTIMIZER: 7 * MIB}


def test_linear_peak(program) -> None:
    program(lambda n: made((4 + n) * MIB, 8 * MIB))
    found = scaling("x.py:make_step", values=(8, 16, 32))
    assert [*found.estimates] == [8, 16, 32]
    assert found.formula == "4.00 MiB + 1.00 MiB x batch"
    assert found.at(1000) == 1004 * MIB
    assert (found.place, found.begins) == (PASS, 4)
    assert str(found).startswith(
        "peak allocated = 4.00 MiB + 1.00 MiB x batch, from batch = 4 on\n"
        "  in forward and backward\n"
        "  below it in the optimizer's step: 8.00 MiB\n"
        "from 3 runs, which it meets:\n"
    )


def test_runs_whose_peak_is_in_the_optimizer(program) -> None:
    # 4 + n / 64 MiB outgrow 100 from 6144 items on, far from the values that were asked for
    program(lambda n: made(4 * MIB + 16 * KIB * n, 100 * MIB))
    found = scaling("x.py:make_step", values=(8, 16, 24))
    assert found.begins == 6144
    assert found.at(24) == 100 * MIB
    assert found.at(1 << 16) == 1028 * MIB
    # each further run is at most eight times as large, until two beyond it are on the line
    assert [*found.estimates][3:] == [192, 1536, 12288, 24576]


def test_another_place_of_the_same_part(program) -> None:
    # 20 MiB + 1 KiB an item first, and 18 MiB + 16 KiB an item from 137 on
    program(lambda n: made(max(20 * MIB + KIB * n, 18 * MIB + 16 * KIB * n), 8 * MIB))
    found = scaling("x.py:make_step", values=(8, 16, 24))
    assert found.formula == "18.00 MiB + 16.00 KiB x batch"
    assert found.at(1 << 20) == (18 + 16 * 1024) * MIB


def test_quadratic_peak_needs_a_confirming_run(program) -> None:
    program(lambda n: made(4 * MIB + MIB * n + KIB * 64 * n * n, 4 * MIB + 1))
    found = scaling("x.py:make_step", values=(8, 16, 32))
    assert found.formula == "4.00 MiB + 1.00 MiB x batch + 64.00 KiB x batch^2"
    assert [*found.estimates] == [8, 16, 32, 64]


def test_no_parabola_bends_downwards() -> None:
    found = fit_curve({1: 10 * MIB, 2: 30 * MIB, 3: 40 * MIB})
    assert (found.quadratic, found.linear, found.is_sure) == (0, 10 * MIB, False)


def test_failing_run_ends_the_search(program) -> None:
    program(lambda n: made(4 * MIB + 16 * KIB * n, 100 * MIB), fails_above=1024)
    found = scaling("x.py:make_step", values=(8, 16, 24))
    assert max(found.estimates) == 192
    assert str(found).endswith("  no run with batch = 1536: index out of range")
    assert "no run is so large that the formula is its peak: it is a guess" in str(found)


@pytest.mark.parametrize("values", [(1, 2), (0, 1, 2), (5, 5, 5)])
def test_values_that_make_no_sense(values) -> None:
    with pytest.raises(UsageError, match="values="):
        scaling("x.py:make_step", values=values)
