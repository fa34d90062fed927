"""The plugin's options for all tests: the hungriest, and a baseline that peaks must not exceed."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.guards import is_from_a_handler, warn
from tensorlens.integrations.assertions import Peaks
from tensorlens.render import write_whole
from tensorlens.render.figures import size
from tensorlens.units import format_bytes

_PROPERTY = "tensorlens_peak"
"""Under which a test's report carries its peaks, also from a worker of xdist."""
_T = TypeVar("_T")
_VERSION = 1


class PeakPlugin:
    """Measures every test, and judges it by a baseline.

    Args:
        top: how many of the hungriest tests are listed at the end.
        baseline: None judges nothing.
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
        """Measure the test itself, without its fixtures."""
        peaks = _quietly(lambda: Peaks(None, names=False))
        try:
            result = yield
        finally:
            if peaks is not None:
                _quietly(peaks.end)
            figures = {} if peaks is None else peaks.found
            item.user_properties.append((_PROPERTY, json.dumps(figures)))
        text = "" if self._baseline is None else self._baseline.excess(item.nodeid, figures)
        if text:
            pytest.fail(text, pytrace=False)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a test's figures, of whichever process ran it."""
        # what a failed test took is no measure
        is_kept = report.passed or self._baseline is None or not self._baseline.update
        if report.when == "call" and is_kept:
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
        missing = "" if self._baseline is None else self._baseline.missing_text(self._found)
        if missing:
            terminalreporter.write_line(missing)

    def pytest_sessionfinish(self) -> None:
        """Write the baseline."""
        if self._baseline is not None and not self._is_worker:
            self._baseline.write(self._found)


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


class Baseline:
    """The file of peaks, test to device to bytes.

    Args:
        path: the file.
        tolerance: by which part of it a peak may be above the file's: 0.05 is 5 %.
        update: judge nothing, and write the file anew.

    Raises:
        UsageError: the file cannot be read, or is no baseline.
    """

    def __init__(self, path: Path, tolerance: float, update: bool) -> None:
        self._path = path
        self._tolerance = tolerance
        self.update = update
        self._peaks = _read(path, may_be_missing=update)

    def excess(self, test: str, peaks: Mapping[str, int]) -> str:
        """Return by how much a test is above the baseline, in words; nothing where it is not."""
        if self.update:
            return ""
        lines = []
        for device, before in self._peaks.get(test, {}).items():
            now = peaks.get(device, 0)
            if now > before * (1 + self._tolerance):
                lines.append(
                    f"{device}: {format_bytes(now)} at the highest instant of the test,"
                    f" {format_bytes(before)} in {self._path}"
                    f" (tolerance {self._tolerance:.0%}; --tensorlens-update takes the new figure)"
                )
        return "\n".join(lines)

    def missing_text(self, peaks: Mapping[str, Mapping[str, int]]) -> str:
        """Return how many of the tests that ran are not in it, in words; nothing for none."""
        new = [test for test in peaks if test not in self._peaks]
        if self.update or not new:
            return ""
        count = "1 test is" if len(new) == 1 else f"{len(new)} tests are"
        return f"tensorlens: {count} not in {self._path}; --tensorlens-update adds them"

    def write(self, peaks: Mapping[str, Mapping[str, int]]) -> None:
        """Write it, where it is to be updated; tests that did not run keep their figures."""
        if not self.update:
            return
        tests = {**self._peaks, **peaks}
        content = {"version": _VERSION, "tests": dict(sorted(tests.items()))}
        try:
            write_whole(self._path, f"{json.dumps(content, indent=1)}\n".encode())
        except OSError as error:
            warn(f"{self._path} was not written", error)


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
