"""The plugin's options for all tests: the hungriest, and a baseline that peaks must not exceed."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.guards import warn
from tensorlens.integrations.assertions import Peaks
from tensorlens.render import write_whole
from tensorlens.render.figures import size
from tensorlens.signals import is_from_a_handler
from tensorlens.units import format_bytes

_PROPERTY = "tensorlens_peak"
"""Under which a test's report carries its peaks, also from a worker of xdist."""
_VERSION = 1
_T = TypeVar("_T")


class PeakPlugin:
    """Measures every test, and judges it by a baseline.

    Args:
        top: how many of the hungriest tests are listed at the end.
        baseline: the file of peaks; None judges nothing.
        update: write the file anew instead of judging.
        tolerance: by which part of it a peak may be above the baseline: 0.05 is 5 %.
        is_worker: whether this is a worker of xdist, which writes and prints nothing.
    """

    def __init__(
        self, top: int, baseline: Path | None, update: bool, tolerance: float, is_worker: bool
    ) -> None:
        self._top = top
        self._path = baseline
        self._update = update
        self._tolerance = tolerance
        self._is_worker = is_worker
        before = {} if baseline is None else _read(baseline, may_be_missing=update)
        self._baseline = {} if update else before
        self._before = before
        """The file as it was: tests that do not run keep their figures."""
        self._found: dict[str, dict[str, int]] = {}
        """Test to device to bytes."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Measure the test itself, without its fixtures."""
        peaks = _quietly(lambda: Peaks(None, names=False))
        try:
            result = yield
        finally:
            if peaks is not None:
                _quietly(peaks.end)
            figures = {} if peaks is None else peaks.found
            item.user_properties.append((_PROPERTY, json.dumps(figures)))
        text = self._excess(item.nodeid, figures)
        if text:
            pytest.fail(text, pytrace=False)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's figures, of whichever process ran it."""
        # what a failed test took is no measure
        if report.when == "call" and (report.passed or not self._update):
            for name, value in report.user_properties:
                if name == _PROPERTY and isinstance(value, str):
                    self._found[report.nodeid] = json.loads(value)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the hungriest tests, and those that the baseline does not have."""
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
        if self._path is not None and not self._update:
            new = [test for test in self._found if test not in self._baseline]
            if new:
                count = "1 test is" if len(new) == 1 else f"{len(new)} tests are"
                terminalreporter.write_line(
                    f"tensorlens: {count} not in {self._path}; --tensorlens-update adds them"
                )

    def pytest_sessionfinish(self) -> None:
        """Write the baseline, of the tests that ran; others keep their figures."""
        if self._path is None or not self._update or self._is_worker:
            return
        tests = {**self._before, **self._found}
        content = {"version": _VERSION, "tests": dict(sorted(tests.items()))}
        try:
            write_whole(self._path, f"{json.dumps(content, indent=1)}\n".encode())
        except OSError as error:
            warn(f"{self._path} was not written", error)

    def _excess(self, test: str, figures: dict[str, int]) -> str:
        """Return by how much a test is above the baseline, in words; nothing where it is not."""
        lines = []
        for device, before in self._baseline.get(test, {}).items():
            now = figures.get(device, 0)
            if now > before * (1 + self._tolerance):
                lines.append(
                    f"{device}: {format_bytes(now)} at the highest instant of the test,"
                    f" {format_bytes(before)} in {self._path}"
                    f" (tolerance {self._tolerance:.0%}; --tensorlens-update takes the new figure)"
                )
        return "\n".join(lines)


def tolerance_of(text: str) -> float:
    """Return ``"5%"`` or ``"0.05"`` as a number.

    Raises:
        UsageError: it is no such number, or negative.
    """
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise UsageError(f"a tolerance of {text!r}: write for example 5%")
    return value


def _quietly(act: Callable[[], _T]) -> _T | None:
    """Return what it gives; None where it fails, or no framework is imported so far."""
    try:
        return act()
    except TensorlensError:
        return None
    except Exception as error:
        if is_from_a_handler(error):
            raise
        warn("the memory of a test is not known", error)
        return None


def _read(path: Path, *, may_be_missing: bool = False) -> dict[str, dict[str, int]]:
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["version"] != _VERSION:
            raise ValueError
        return {
            str(test): {str(device): int(nbytes) for device, nbytes in figures.items()}
            for test, figures in data["tests"].items()
        }
    except FileNotFoundError:
        if may_be_missing:
            return {}
        raise UsageError(f"there is no file {path}; --tensorlens-update writes it") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(
            f"{path} is no baseline of this tensorlens; delete it, and --tensorlens-update"
            " writes it anew"
        ) from None
