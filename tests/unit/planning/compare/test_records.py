"""What a comparison says of rows made by hand."""

import json
import math
from dataclasses import replace

import pytest

from tensorlens import Comparison
from tensorlens.errors import FileFormatError, UsageError
from tensorlens.loading import parse
from tensorlens.planning.compare import LossCheck, Outcome, result
from tensorlens.render import TextRenderer, html_page

MIB = 1 << 20


def outcome(name, peak, seconds=(), losses=(), **more):
    return Outcome(
        name,
        peak_allocated=peak,
        peak_reserved=peak,
        peaks=(peak,) * max(len(seconds), 1),
        seconds=seconds,
        losses=losses,
        **more,
    )


def comparison(*outcomes, **more):
    made = Comparison(outcomes, outcomes[0].name, "cpu", "measured", **{"repeats": 3, **more})
    assert Comparison.from_json(made.to_json()) == made
    assert parse(made.to_json()) == made
    return made


BASE = outcome("base", 100 * MIB, (1.0, 1.1, 0.9), (2.0, 1.0))


def answers(found):
    return {winner.question: winner.names for winner in found.winners}


def test_the_least_memory_and_the_least_within_a_tenth_of_the_speed():
    found = comparison(
        BASE,
        outcome("slow", 40 * MIB, (2.0, 2.2, 1.8), (2.0, 1.0)),
        outcome("quick", 70 * MIB, (1.05, 1.155, 0.945), (2.0, 1.0)),
    )
    assert answers(found) == {result.LEAST: ("slow",), result.BATCH: (), result.QUICK: ("quick",)}
    assert found.saved("slow") == 60 * MIB
    assert found.time_ratio("slow").point == pytest.approx(2)
    assert found.time_ratio("slow").verdict == "slower"
    assert found.pareto == ("base", "slow", "quick")
    assert "60.0 % less than the baseline" in str(found)


def test_dominated_option_is_not_in_the_pareto_set():
    found = comparison(
        BASE,
        outcome("worse", 110 * MIB, (2.0, 2.2, 1.8)),
        outcome("better", 50 * MIB, (0.5, 0.55, 0.45)),
    )
    assert found.pareto == ("better",)


def test_no_difference_is_an_answer():
    found = comparison(BASE, outcome("same", 100 * MIB, (1.1, 0.9, 1.0), (2.0, 1.0)))
    assert found.time_ratio("same").verdict == "no difference"
    assert answers(found)[result.LEAST] == ("base", "same")
    assert "no difference to the baseline: 100.00 MiB" in str(found)


def test_single_option_has_no_comparison():
    cannot = result.Outcome("cannot", status=result.Status.CANNOT, why="not here")
    found = comparison(BASE, cannot)
    assert answers(found) == {result.LEAST: (), result.BATCH: (), result.QUICK: ()}
    assert "'base' alone has figures" in str(found)
    assert "no difference to the baseline" not in str(found)


def test_one_repeat_says_nothing_of_noise():
    assert result.ratio((2.0,), (1.0,)).verdict == "unknown"
    assert result.ratio((), (1.0,)) is None


def test_times_of_one_run_are_no_result():
    found = comparison(
        outcome("base", 100 * MIB, (1.0,)), outcome("slow", 40 * MIB, (7.35,)), repeats=1
    )
    text = str(found)
    assert "7.35" not in text
    assert "time: n/a, timing noise unknown after one run; use repeats=3 (--repeats 3)" in text
    assert answers(found) == {result.LEAST: ("slow",), result.BATCH: (), result.QUICK: ()}
    assert found.pareto == ()
    assert "7.35" not in found.to_csv()


def test_a_time_that_noise_hides_is_no_result():
    # logarithms -2, 0 and 2: the interval reaches from 0.007 to 144 times the baseline's
    e = 2.718281828459045
    found = comparison(BASE, outcome("unsure", 40 * MIB, (e**-2, 1.1, 0.9 * e**2)))
    assert "too noisy" in str(found)
    said = "times are lost in noise; use more steps: steps=..., --steps"
    assert said in " ".join(str(found).split())
    assert answers(found)[result.QUICK] == ()
    assert found.pareto == ()


def test_noisy_ratio_has_no_verdict():
    # logarithms -0.06, 0 and 0.06: half of the interval is 4.303 * 0.06 / sqrt(3) = 0.149
    e = 2.718281828459045
    unsure = outcome("unsure", 40 * MIB, (e**-0.06, 1.1, 0.9 * e**0.06))
    found = comparison(BASE, unsure)
    assert answers(found)[result.QUICK] == ()
    assert found.pareto == ("unsure",)
    sure = outcome("sure", 60 * MIB, (1.01, 1.111, 0.909))
    assert answers(comparison(BASE, unsure, sure))[result.QUICK] == ("sure",)


def test_the_interval_is_students():
    # logarithms 0, 1 and 2: mean 1, deviation 1, t of 2 degrees of freedom 4.303
    e = 2.718281828459045
    found = result.ratio((1.0, e, e * e), (1.0, 1.0, 1.0))
    assert found.point == pytest.approx(e)
    assert found.high == pytest.approx(e ** (1 + 4.303 / 3**0.5))
    assert found.verdict == "no difference"


def test_the_largest_batch():
    found = comparison(
        outcome("base", 100, largest_batch=10, beyond="11: out of memory"),
        outcome("more", 90, largest_batch=25, beyond="26: out of memory"),
        outcome("none", 95, missing={"largest_batch": "it takes no batch"}),
        capacity=1000,
    )
    assert answers(found)[result.BATCH] == ("more",)
    text = str(found)
    assert "25, 2.50 times the baseline's" in text
    assert "26: out of memory" in text
    assert "none: no largest batch: it takes no batch" in text


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [
        ((2.0, 1.0), "same"),
        ((2.0, 0.5), "same at first"),
        ((1.0, 1.0), "differs"),
        ((None, 1.0), "differs"),
    ],
)
def test_losses_in_the_table(losses, verdict):
    found = comparison(BASE, outcome("other", 1, (1.0,) * 3, losses))
    assert found.loss_check("other").verdict == verdict
    if verdict == "differs":
        assert "the loss differs: other" in str(found).replace("\n", " ")


def test_losses_that_are_no_numbers_in_both_runs_are_not_the_same():
    lost = outcome("base", 1, (1.0,) * 3, (None, None))
    found = comparison(lost, replace(lost, name="other"))
    assert found.loss_check("other") == LossCheck(math.inf, math.inf)
    row = next(line for line in str(found).splitlines() if line.split()[:1] == ["other"])
    assert "not finite" in row
    assert found.loss_check("base").verdict == "same"


def test_rows_without_figures():
    found = comparison(
        BASE,
        Outcome("fused", status="cannot", why="SGD takes no such thing"),
        Outcome("crash", status="failed", why="the process was ended by SIGSEGV: a crash"),
    )
    text = str(found)
    assert "fused: SGD takes no such thing" in text
    assert "crash: failed: the process was ended by SIGSEGV" in text
    assert found.time_ratio("fused") is None and found.saved("crash") is None
    with pytest.raises(UsageError, match="no option 'other'"):
        found["other"]


def test_peaks_of_the_baseline_and_of_the_least_option_are_told_with_their_lines():
    rows = [(BASE, "train.py:8, 64.00 MiB"), (outcome("half", 50 * MIB, (1.0,) * 3), "train.py:9")]
    rows.append((outcome("most", 200 * MIB, (1.0,) * 3), "train.py:10"))
    found = comparison(*(replace(each, at_peak={"line": line}) for each, line in rows))
    text = str(found)
    assert "line  train.py:8, 64.00 MiB" in text.partition(f"At the peak of {BASE.name!r}")[2]
    assert "line  train.py:9" in text.partition("At the peak of 'half'")[2]
    assert "train.py:10" not in text
    assert Comparison.from_json(found.to_json()) == found


def test_comparison_where_nothing_ran():
    found = comparison(Outcome("a", status="failed", why="no"))
    assert found.pareto == () and answers(found) == {
        result.LEAST: (),
        result.BATCH: (),
        result.QUICK: (),
    }
    assert "no option has figures" in str(found)
    html_page(found)


@pytest.mark.parametrize("name", ["<script>x</script>", "a\x1b[31m\nb", "模型" * 30, "x" * 300])
def test_hostile_option_names(name):
    found = comparison(BASE, outcome(name, 5, (1.0,) * 3), Outcome(name + "!", status="cannot"))
    for width in (80, 120):
        text = TextRenderer(width=width, encoding="ascii").render(found)
        assert "\x1b" not in text
    assert "<script>" not in html_page(found)
    assert found.to_csv() and list(found.to_pandas()["peak_allocated"].dropna()) == [100 * MIB, 5]


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(width):
    found = comparison(
        BASE, outcome("a" * 40, 5, (1.0,) * 3, (2.0, 1.0), least_capacity=5), capacity=7
    )
    text = TextRenderer(width=width, encoding="utf-8").render(found)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("change", [{"outcomes": [3]}, {"version": 99}])
def test_damaged_comparison(change):
    data = {**json.loads(comparison(BASE).to_json()), **change}
    with pytest.raises(FileFormatError):
        Comparison.from_dict(data)
