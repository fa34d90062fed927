"""Measures all tests: a list of the highest peaks, and a baseline not to be exceeded."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

import pytest

from tensorlens.errors import TensorlensError
from tensorlens.guards import guarded
from tensorlens.integrations.pytest.assertions import Peaks
from tensorlens.integrations.pytest.baseline import Baseline
from tensorlens.render.figures import size

_PROPERTY = "tensorlens_peak"
"""Property of a test's report that has its peaks, also from a worker of xdist."""
_T = TypeVar("_T")


class PeakPlugin:
    """Measures every test and compares it with a baseline.

    Args:
        top: number of tests with the highest peaks listed at the end.
        baseline: the baseline, or None.
        is_worker: whether this is a worker of xdist, which writes and prints nothing.
    """

    def __init__(self, top: int, baseline: Baseline | None, is_worker: bool) -> None:
        self._top = top
        self._baseline = baseline
        self._is_worker = is_worker
        self._found: dict[str, dict[str, int]] = {}
        """Test to device to bytes."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the test without its fixtures."""
        peaks = _quietly(lambda: Peaks(None, names=False))
        try:
            result = yield
        finally:
            if peaks is not None:
                _quietly(peaks.end)
                item.user_properties.append((_PROPERTY, json.dumps(peaks.found)))
        if peaks is not None and self._baseline is not None:
            text = self._baseline.excess(item.nodeid, peaks.found)
            if text:
                pytest.fail(text, pytrace=False)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect a test's figures from its report."""
        # a failed test does not update the baseline
        is_kept = report.passed or self._baseline is None or not self._baseline.update
        if report.when == "call" and is_kept:
            for name, value in report.user_properties:
                if name == _PROPERTY and isinstance(value, str):
                    self._found[report.nodeid] = json.loads(value)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the tests with the highest peaks, and those missing in the baseline."""
        rows = [
            (nbytes, device, test)
            for test, figures in self._found.items()
            for device, nbytes in figures.items()
            if nbytes > 0
        ]
        rows.sort(key=lambda row: (-row[0], row[2], row[1]))
        if self._top and rows:
            terminalreporter.section("memory of tensors, the hungriest tests")
            for nbytes, device, test in rows[: self._top]:
                terminalreporter.write_line(f"{size(nbytes):>11}  {device:<7} {test}")
        missing = "" if self._baseline is None else self._baseline.missing_text(self._found)
        if missing:
            terminalreporter.write_line(missing)

    def pytest_sessionfinish(self) -> None:
        """Write the baseline."""
        if self._baseline is not None and not self._is_worker:
            self._baseline.write(self._found)


def _quietly(act: Callable[[], _T]) -> _T | None:
    """Return the result of a call; None if it fails or no framework is imported."""
    with guarded("the memory of a test is not known"), suppress(TensorlensError):
        return act()
    return None
