"""Programs whose leaks are known, and healthy ones: each is judged as a user would have it."""

import inspect

import pytest
import tensorflow as tf

from tensorlens.leaks.watch import LeakWatch, find_leaks
from tests.tensorflow.healthy_programs import HEALTHY
from tests.tensorflow.leak_programs import LEAKS

STEPS = 8
EVERY = 8
"""One program in so many is judged in a loop, too."""
OF_TORCH = ("detach", "grad_fn", "no_grad", ".item()", "torch", "autograd", "zero_grad", ".clone")


@pytest.fixture(autouse=True, scope="module")
def quiet():
    level = tf.get_logger().level
    # of functions that are traced again
    tf.get_logger().setLevel("ERROR")
    yield
    tf.get_logger().setLevel(level)


def found_in_a_loop(step):
    numbered = bool(inspect.signature(step).parameters)
    with LeakWatch() as watch:
        for number in range(STEPS):
            step(number) if numbered else step()
            watch.step()
    return watch.report


def check(program, report):
    leaks = sorted(
        report.leaks,
        key=lambda leak: (leak.born.lineno if leak.born else 0, -leak.bytes_per_step),
    )
    found = [
        (leak.born and leak.born.lineno, leak.tensors_per_step, leak.bytes_per_step)
        for leak in leaks
    ]
    # threads of tf.data run no line
    lines = program.lines() or [None]
    truths = zip(lines, program.truths, strict=True)
    assert found == [(line, truth.tensors, truth.nbytes) for line, truth in truths]
    for leak, truth in zip(leaks, program.truths, strict=True):
        ways = [leak.path, *map(str, leak.paths)]
        assert any(truth.holder in way for way in ways), ways
        assert truth.advice is None or truth.advice in (leak.advice or ""), leak.advice
        assert truth.holder or "TensorFlow's runtime" in leak.reason
    assert not [word for word in OF_TORCH if word in str(report)], str(report)


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_found(name):
    check(LEAKS[name], find_leaks(LEAKS[name].make()))


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_programs_do_not_leak(name):
    report = find_leaks(HEALTHY[name]())
    assert report.leaks == (), str(report)
    assert {each.kind for each in report.others} <= {"filling", "garbage"}, str(report)
    assert report.notes == (), report.notes


@pytest.mark.parametrize("name", [*LEAKS][::EVERY])
def test_leaks_are_found_in_a_loop(name):
    check(LEAKS[name], found_in_a_loop(LEAKS[name].make()))


@pytest.mark.parametrize("name", [*HEALTHY][1::EVERY])
def test_healthy_loops_do_not_leak(name):
    report = found_in_a_loop(HEALTHY[name]())
    assert report.leaks == (), str(report)
