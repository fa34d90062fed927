"""The plugin of pytest: limits on the tensors that a test takes, and on those it leaves behind.

It imports no framework, and the rest of tensorlens only where a test is watched: nothing is done
for a test without one of its markers or options.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from tensorlens.errors import TensorlensError
from tensorlens.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from tensorlens.integrations.assertions import Peaks, TensorMemory
    from tensorlens.leaks.residue import LineResidue, Stretch

_DEVICE = re.compile(r"[a-z]+(:\d+)?")
_LEAKS = "limit_tensor_leaks"
_MEMORY = "limit_tensor_memory"


@dataclass(slots=True)
class Limits:
    """Limits of a test, and their watchers."""

    leaks: int | None = None
    """Bytes of tensors made in the test that may be there after it."""
    memory: int | None = None
    """Bytes that may be allocated at once, beyond what was there before."""
    device: str | None = None
    stretch: Stretch | None = None
    peaks: Peaks | None = None
    refused: list[str] = field(default_factory=list)
    """Why something could not be watched."""

    def watch(self) -> Callable[[], None]:
        """Watch from now on, if a framework is there; return what ends that."""
        from tensorlens.frameworks.registry import adapters, arrivals
        from tensorlens.integrations.assertions import Peaks
        from tensorlens.leaks.residue import Stretch

        watched = adapters()

        def begin() -> None:
            if self.memory is not None and watched:
                self.peaks = Peaks(self.device)
            if self.leaks is not None and watched:
                self.stretch = Stretch()

        def stop() -> None:
            self.refused += (f"the test itself imported {name}" for name in arrivals(watched))
            if self.peaks is not None:
                self.peaks.end()
                self.refused += filter(None, [self.peaks.unknown])
            if self.stretch is not None:
                self.stretch.end()

        def safely(act: Callable[[], None]) -> None:
            # the test's own exception is not to give way to ours
            try:
                act()
            except Exception as error:
                self.refused.append(str(error) or type(error).__name__)

        safely(begin)
        return lambda: safely(stop)


_KEY = pytest.StashKey[Limits]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options on the memory of all tests."""
    group = parser.getgroup("tensorlens", "memory of tensors")
    group.addoption(
        "--tensorlens",
        nargs="?",
        type=int,
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


def pytest_configure(config: pytest.Config) -> None:
    """Say what the markers are, and measure all tests where an option wants that."""
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
    from tensorlens.integrations.pytest_peaks import Baseline, PeakPlugin, tolerance_of

    try:
        tolerance = tolerance_of(config.getini("tensorlens_tolerance"))
        baseline = Baseline(config.rootpath / file, tolerance, update) if file else None
    except TensorlensError as error:
        raise pytest.UsageError(f"tensorlens: {error}") from None
    plugin = PeakPlugin(top, baseline, hasattr(config, "workerinput"))
    config.pluginmanager.register(plugin, "tensorlens_peaks")


@pytest.fixture
def tensor_memory() -> Iterator[TensorMemory]:
    """Bytes of tensors that the test has allocated at once: ``tensor_memory.peak("cpu")``."""
    from tensorlens.integrations.assertions import TensorMemory

    memory = TensorMemory()
    yield memory
    memory.close()


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Read the markers.

    Raises:
        pytest.UsageError: one has arguments that it cannot take.
    """
    for item in items:
        leaks, memory = item.get_closest_marker(_LEAKS), item.get_closest_marker(_MEMORY)
        if leaks is None and memory is None:
            continue
        item.stash[_KEY] = limits_of(item, leaks, memory)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test with a limit on its leaks: they are what its teardown does not free."""
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
    for reason in limits.refused:
        item.warn(pytest.PytestWarning(f"a limit on tensors was not checked: {reason}"))
    text = "" if peaks is None or limits.memory is None else peaks.over(limits.memory)
    if text:
        pytest.fail(text, pytrace=False)
    return result


def _judge_leaks(item: pytest.Item, limits: Limits, reports: Sequence[pytest.TestReport]) -> None:
    """Let the test fail if it has left too much behind."""
    stretch, limits.stretch = limits.stretch, None
    if stretch is None or limits.leaks is None:
        return
    try:
        call = next((each for each in reports if each.when == "call"), None)
        if call is None or not all(each.passed for each in reports) or hasattr(call, "wasxfail"):
            return
        remains = stretch.remains()
    finally:
        stretch.close()
    if sum(each.nbytes for each in remains) > limits.leaks:
        call.outcome = "failed"
        call.longrepr = _failure(item, excess_text(remains, limits.leaks))


def _failure(item: pytest.Item, text: str) -> Any:
    try:
        pytest.fail(text, pytrace=False)
    except pytest.fail.Exception:
        return item.repr_failure(pytest.ExceptionInfo.from_current())


def limits_of(item: pytest.Item, leaks: pytest.Mark | None, memory: pytest.Mark | None) -> Limits:
    """Return what the markers of a test say.

    Raises:
        pytest.UsageError: one has arguments that it cannot take.
    """
    limits = Limits()
    if leaks is not None:
        limits.leaks = _size(item, leaks, ())
    if memory is not None:
        limits.memory = _size(item, memory, ("device",))
        limits.device = _device(item, memory)
    return limits


def _size(item: pytest.Item, mark: pytest.Mark, options: Sequence[str]) -> int:
    unknown = next((name for name in mark.kwargs if name not in options), None)
    if unknown is not None:
        raise _refused(item, mark, f"unknown argument {unknown!r}")
    if len(mark.args) != 1:
        raise _refused(item, mark, f'it takes one size, as in {mark.name}("64 MiB")')
    (given,) = mark.args
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise _refused(item, mark, f"{given!r} is not a size: write for example '64 MiB'")
    try:
        size = parse_bytes(given)
    except TensorlensError as error:
        raise _refused(item, mark, str(error)) from None
    if size < 0:
        raise _refused(item, mark, f"{given!r} is not a size: it is negative")
    return size


def _device(item: pytest.Item, mark: pytest.Mark) -> str | None:
    device = mark.kwargs.get("device")
    if device is None:
        return None
    if not isinstance(device, str) or _DEVICE.fullmatch(device) is None:
        raise _refused(item, mark, f"{device!r} is no device: write for example 'cuda:0'")
    return device


def _refused(item: pytest.Item, mark: pytest.Mark, text: str) -> pytest.UsageError:
    return pytest.UsageError(f"{item.nodeid}: {mark.name}: {' '.join(text.split())}")


def excess_text(remains: Sequence[LineResidue], limit: int) -> str:
    """Return what is left of a test beyond its limit, in words."""
    from tensorlens.integrations.assertions import remains_text

    total = format_bytes(sum(each.nbytes for each in remains))
    head = f"{total} of tensors outlive the test, its limit is {format_bytes(limit)}"
    return "\n".join([head, *(line for each in remains for line in remains_text(each))])
