"""The pytest plugin: limits on the tensors of a test, and on those that it leaves behind.

It imports no framework, and does nothing for tests without its markers and options.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from tensorlens.errors import TensorlensError
from tensorlens.integrations.pytest.limits import Limits, excess_text, limits_of

if TYPE_CHECKING:
    from tensorlens.integrations.pytest.assertions import TensorMemory
    from tensorlens.leaks.scope import AllocationScope, LineResidue

_LEAKS = "limit_tensor_leaks"
_MEMORY = "limit_tensor_memory"
_KEY = pytest.StashKey[Limits]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for all tests."""
    group = parser.getgroup("tensorlens", "memory of tensors")
    group.addoption(
        "--tensorlens",
        nargs="?",
        type=_number,
        const=10,
        default=0,
        metavar="N",
        help="list the N tests (10) with the highest peaks at the end",
    )
    group.addoption(
        "--tensorlens-baseline",
        metavar="FILE",
        help="fail a test whose peak is above that in FILE, also the setting tensorlens_baseline",
    )
    group.addoption(
        "--tensorlens-update", action="store_true", help="write the baseline from this run"
    )
    parser.addini("tensorlens_baseline", "file of the peaks that tests must not exceed")
    parser.addini("tensorlens_tolerance", "by how much they may: 5%", default="5%")


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        hint = "write --tensorlens=10, or put it after the tests"
        raise argparse.ArgumentTypeError(f"{text!r} is no number: {hint}") from None


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, and measure all tests if an option asks for it."""
    _measure_all(config)
    config.addinivalue_line(
        "markers",
        f'{_LEAKS}("0 B"): fail the test if tensors that it made are still there after its'
        " teardown, more bytes of them than given",
    )
    config.addinivalue_line(
        "markers",
        f'{_MEMORY}("2 GiB", device=None): fail the test if at any instant it has more bytes of'
        " tensors allocated, on a device or on each one, than were there before it",
    )


def _measure_all(config: pytest.Config) -> None:
    file = config.getoption("tensorlens_baseline") or config.getini("tensorlens_baseline")
    top, update = config.getoption("tensorlens"), config.getoption("tensorlens_update")
    if update and not file:
        raise pytest.UsageError("--tensorlens-update needs a file: --tensorlens-baseline FILE")
    if not top and not file:
        return
    from tensorlens.integrations.pytest.baseline import Baseline, tolerance_of
    from tensorlens.integrations.pytest.peaks import PeakPlugin

    try:
        tolerance = tolerance_of(config.getini("tensorlens_tolerance"))
        baseline = Baseline(config.rootpath / file, tolerance, update) if file else None
    except TensorlensError as error:
        raise pytest.UsageError(f"tensorlens: {error}") from None
    plugin = PeakPlugin(top, baseline, hasattr(config, "workerinput"))
    config.pluginmanager.register(plugin, "tensorlens_peaks")


@pytest.fixture
def tensor_memory() -> Iterator[TensorMemory]:
    """Peak of the test in bytes: ``tensor_memory.peak("cpu")``."""
    from tensorlens.integrations.pytest.assertions import TensorMemory

    memory = TensorMemory()
    yield memory
    memory.close()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Read the markers.

    Raises:
        pytest.UsageError: a marker has invalid arguments.
    """
    for item in items:
        leaks, memory = item.get_closest_marker(_LEAKS), item.get_closest_marker(_MEMORY)
        if leaks is None and memory is None:
            continue
        item.stash[_KEY] = limits_of(item, leaks, memory)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test that has a limit on leaks, and judge it after its teardown."""
    limits = item.stash.get(_KEY, None)
    if limits is None or limits.leaks is None:
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    try:
        _judge_leaks(item, limits, reports)
    finally:
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the test itself, without its fixtures."""
    limits = item.stash.get(_KEY, None)
    if limits is None:
        return (yield)
    stop = limits.watch()
    try:
        result = yield
    finally:
        stop()
        peaks, limits.peaks = limits.peaks, None
    _warn_of_refusals(item, limits)
    text = "" if peaks is None or limits.memory is None else peaks.over(limits.memory)
    if text:
        pytest.fail(text, pytrace=False)
    return result


def _judge_leaks(item: pytest.Item, limits: Limits, reports: Sequence[pytest.TestReport]) -> None:
    """Fail the test if it left too much behind."""
    scope, limits.scope = limits.scope, None
    if scope is None:
        return
    call = next((each for each in reports if each.when == "call"), None)
    if call is None or not all(each.passed for each in reports) or hasattr(call, "wasxfail"):
        limits.safely(scope.close)
        return
    try:
        _check_leaks(item, limits, scope)
    except (pytest.fail.Exception, pytest.PytestWarning):
        call.outcome = "failed"
        call.longrepr = item.repr_failure(pytest.ExceptionInfo.from_current())


def _check_leaks(item: pytest.Item, limits: Limits, scope: AllocationScope) -> None:
    """Fail the test if too much is left; warn of refusals, which may raise too."""
    remains: list[LineResidue] = []
    try:
        limits.safely(lambda: remains.extend(scope.remains()))
    finally:
        limits.safely(scope.close)
    _warn_of_refusals(item, limits)
    limit = limits.leaks or 0
    if sum(each.nbytes for each in remains) > limit:
        pytest.fail(excess_text(remains, limit), pytrace=False)


def _warn_of_refusals(item: pytest.Item, limits: Limits) -> None:
    refused, limits.refused = limits.refused, []
    for reason in refused:
        item.warn(pytest.PytestWarning(f"a limit on tensors was not checked: {reason}"))
