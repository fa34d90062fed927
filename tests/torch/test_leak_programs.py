"""Programs whose leaks are known, and healthy ones: each is judged as a user would have it."""

import inspect
import warnings

import pytest

from tensorlens.leaks.watch import LeakWatch, find_leaks
from tests.torch.healthy_programs import HEALTHY
from tests.torch.leak_programs import LEAKS

STEPS = 8
EVERY = 8
"""One program in so many is judged in a loop, too."""


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        # of backward(create_graph=True)
        warnings.simplefilter("ignore")
        yield


def found_in_a_loop(step):
    numbered = bool(inspect.signature(step).parameters)
    with LeakWatch() as watch:
        for number in range(STEPS):
            step(number) if numbered else step()
            watch.step()
    return watch.report


def check(program, report):
    leaks = sorted(report.leaks, key=lambda leak: leak.born.lineno)
    found = [(leak.born.lineno, leak.tensors_per_step, leak.bytes_per_step) for leak in leaks]
    truths = zip(program.lines(), program.truths, strict=True)
    assert found == [(line, truth.tensors, truth.nbytes) for line, truth in truths]
    for leak, truth in zip(leaks, program.truths, strict=True):
        ways = [leak.path, *map(str, leak.paths)]
        assert any(truth.holder in way for way in ways), ways


@pytest.mark.parametrize("name", LEAKS)
def test_leaks_are_found(name):
    check(LEAKS[name], find_leaks(LEAKS[name].make()))


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_programs_do_not_leak(name):
    report = find_leaks(HEALTHY[name]())
    assert report.leaks == (), report.leaks


@pytest.mark.parametrize("name", [*LEAKS][::EVERY])
def test_leaks_are_found_in_a_loop(name):
    check(LEAKS[name], found_in_a_loop(LEAKS[name].make()))


@pytest.mark.parametrize("name", [*HEALTHY][1::EVERY])
def test_healthy_loops_do_not_leak(name):
    report = found_in_a_loop(HEALTHY[name]())
    assert report.leaks == (), report.leaks
