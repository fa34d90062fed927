"""Programs whose leaks are known, and healthy ones: each is judged as a user would have it.

Several of them make one loop, for most of the time goes into looking at all that TensorFlow has
in memory, once for each verdict.
"""

import functools
import inspect

import pytest
import tensorflow as tf

from tensorlens.leaks.watch import LeakWatch, find_leaks
from tests.tensorflow.healthy_programs import HEALTHY
from tests.tensorflow.leak_programs import LEAKS

STEPS = 8
TOGETHER = 8
OF_TORCH = ("detach", "grad_fn", "no_grad", ".item()", "torch", "autograd", "zero_grad", ".clone")


def in_loops(names):
    return [tuple(names[at : at + TOGETHER]) for at in range(0, len(names), TOGETHER)]


# what threads of tf.data allocate is of no line, so nothing else tells whose it is
ALONE = [name for name in LEAKS if not LEAKS[name].lines()]
LOOPS = [*in_loops([name for name in LEAKS if name not in ALONE]), *((name,) for name in ALONE)]
LOOP_OF = {name: loop for loop in LOOPS for name in loop}


@pytest.fixture(autouse=True, scope="module")
def quiet():
    level = tf.get_logger().level
    # of functions that are traced again
    tf.get_logger().setLevel("ERROR")
    yield
    tf.get_logger().setLevel(level)


def one_of(steps):
    """Return a step that makes one of each."""
    numbered = [(step, bool(inspect.signature(step).parameters)) for step in steps]

    def step(number):
        for each, is_numbered in numbered:
            each(number) if is_numbered else each()

    return step


@functools.cache
def leaks_of(loop):
    """Return the verdict on some programs, every other loop's as a loop that marks its steps."""
    step = one_of([LEAKS[name].make() for name in loop])
    if LOOPS.index(loop) % 2:
        return find_leaks(step)
    with LeakWatch() as watch:
        for number in range(STEPS):
            step(number)
            watch.step()
    return watch.report


def program_at(line):
    """Return the name of the program that a line is in."""
    for name, program in LEAKS.items():
        source, first = inspect.getsourcelines(program.make)
        if line is not None and first <= line.lineno < first + len(source):
            return name
    return ALONE[0] if line is None else str(line)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop[0])
def test_nothing_else_is_found(loop):
    report = leaks_of(loop)
    assert {program_at(leak.born) for leak in report.leaks} <= {*loop}, str(report)
    assert not [word for word in OF_TORCH if word in str(report)], str(report)


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_found(name):
    program = LEAKS[name]
    leaks = sorted(
        (leak for leak in leaks_of(LOOP_OF[name]).leaks if program_at(leak.born) == name),
        key=lambda leak: (leak.born.lineno if leak.born else 0, -leak.bytes_per_step),
    )
    found = [
        (leak.born and leak.born.lineno, leak.tensors_per_step, leak.bytes_per_step)
        for leak in leaks
    ]
    truths = zip(program.lines() or [None], program.truths, strict=True)
    assert found == [(line, truth.tensors, truth.nbytes) for line, truth in truths]
    for leak, truth in zip(leaks, program.truths, strict=True):
        ways = [leak.path, *map(str, leak.paths)]
        assert any(truth.holder in way for way in ways), ways
        assert truth.advice is None or truth.advice in (leak.advice or ""), leak.advice
        assert truth.holder or "TensorFlow's runtime" in leak.reason


@pytest.mark.parametrize("loop", in_loops([*HEALTHY]), ids=lambda loop: loop[0])
def test_healthy_programs_do_not_leak(loop):
    report = find_leaks(one_of([HEALTHY[name]() for name in loop]))
    assert report.leaks == (), str(report)
    assert {each.kind for each in report.others} <= {"filling", "garbage"}, str(report)
    assert report.notes == (), report.notes
