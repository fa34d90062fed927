"""Programs whose leaks are known, and healthy ones: each is judged as a user would have it."""

import inspect
import warnings

import pytest
import torch

from tensorlens import LeakWatch, find_leaks
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


def check_balance(report):
    """Check that what grew is what is told, to the byte."""
    for device, each in report.balance.items():
        parts = each.leaks, each.garbage, each.filling, each.rounding, each.unknown, each.freed
        assert min(parts) >= 0
        assert each.growth == sum(parts) - 2 * each.freed
        levels = report.allocated[device]
        assert each.growth == levels[-2] - levels[-(-report.warmup // report.stride) - 1]
        leaks = (leak.bytes_per_step for leak in report.leaks if leak.device == device)
        assert each.leaks == round(each.steps * sum(leaks))
        for kind, nbytes in (("garbage", each.garbage), ("filling", each.filling)):
            told = (o.bytes_per_step for o in report.others if (o.kind, o.device) == (kind, device))
            assert nbytes == round(each.steps * sum(told))
    assert report.balance.keys() == report.allocated.keys()
    for leak in report.leaks:
        assert sum(below.bytes_per_step for below in leak.below) <= leak.bytes_per_step


def check(program, report):
    check_balance(report)
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


def test_a_cycle_through_autograd_is_a_leak_without_a_holder():
    def step():
        weight = torch.ones(5, requires_grad=True)
        (weight**3).sum().backward(create_graph=True)

    report = find_leaks(step)
    check_balance(report)
    assert sum(leak.tensors_per_step for leak in report.leaks) == 3
    assert sum(leak.bytes_per_step for leak in report.leaks) == 4 * (5 + 5 + 1)
    assert {leak.path for leak in report.leaks} == {""}
    assert all("cannot be seen from Python" in leak.reason for leak in report.leaks)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_programs_do_not_leak(name):
    report = find_leaks(HEALTHY[name]())
    assert report.leaks == (), report.leaks
    check_balance(report)


@pytest.mark.parametrize("name", [*LEAKS][::EVERY])
def test_leaks_are_found_in_a_loop(name):
    check(LEAKS[name], found_in_a_loop(LEAKS[name].make()))


@pytest.mark.parametrize("name", [*HEALTHY][1::EVERY])
def test_healthy_loops_do_not_leak(name):
    report = found_in_a_loop(HEALTHY[name]())
    assert report.leaks == (), report.leaks
