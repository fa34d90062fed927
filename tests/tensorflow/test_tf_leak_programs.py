"""Programs whose leaks are known, and healthy ones: each is judged as a user would have it."""

import inspect

import pytest
import tensorflow as tf

from tensorlens import LeakWatch, find_leaks
from tests.tensorflow.tf_healthy_programs import HEALTHY
from tests.tensorflow.tf_leak_programs import LEAKS

STEPS = 8
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


def test_a_leak_is_found_in_a_loop():
    leak = next(iter(LEAKS.values()))
    check(leak, found_in_a_loop(leak.make()))


def one_of(steps):
    """Return a step that makes one of each."""
    numbered = [(step, bool(inspect.signature(step).parameters)) for step in steps]

    def step(number):
        for each, is_numbered in numbered:
            each(number) if is_numbered else each()

    return step


ALONE = "dataset_that_goes_on"
"""What its threads keep while the main thread is in a call would be taken for that call's."""
# one verdict for several of them: it looks at all that TensorFlow has in memory
TOGETHER = [[name for name in [*HEALTHY][first::2] if name != ALONE] for first in range(2)]


@pytest.mark.parametrize("names", [*TOGETHER, [ALONE]], ids=range(3))
def test_healthy_programs_do_not_leak(names):
    report = find_leaks(one_of([HEALTHY[name]() for name in names]))
    assert report.leaks == (), str(report)
    if names != [ALONE]:
        # of what threads of tf.data make, more or less is there after each step
        assert {each.kind for each in report.others} <= {"filling", "garbage"}, str(report)
    # each model has functions of its own, by the same names
    assert not [note for note in report.notes if "is made anew" not in note], report.notes
