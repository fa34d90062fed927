"""Peaks of tests in a file, which later runs must not exceed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tensorlens.errors import UsageError
from tensorlens.guards import warn
from tensorlens.render.formats import write_whole
from tensorlens.units import format_bytes

_VERSION = 1


class Baseline:
    """The file of peaks, test to device to bytes.

    Args:
        path: the file.
        tolerance: fraction by which a peak may exceed the file's: 0.05 is 5 %.
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
        """Return the message for a test above the baseline; "" if it is not."""
        if self.update:
            return ""
        lines = []
        for device, before in self._peaks.get(test, {}).items():
            now = peaks.get(device, 0)
            if now > before * (1 + self._tolerance):
                lines.append(
                    f"{device}: {format_bytes(now)} at the highest instant of the test,"
                    f" {format_bytes(before)} in {self._path}"
                    f" (tolerance {100 * self._tolerance:g}%; --tensorlens-update takes the new"
                    " figure)"
                )
        return "\n".join(lines)

    def missing_text(self, peaks: Mapping[str, Mapping[str, int]]) -> str:
        """Return the message on tests that are not in the file; "" for none."""
        new = [test for test in peaks if test not in self._peaks]
        if self.update or not new:
            return ""
        count = "1 test is" if len(new) == 1 else f"{len(new)} tests are"
        return f"tensorlens: {count} not in {self._path}; --tensorlens-update adds them"

    def write(self, peaks: Mapping[str, Mapping[str, int]]) -> None:
        """Write the file if ``update`` is set; tests that did not run keep their figures."""
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
