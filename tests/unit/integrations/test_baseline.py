"""The file of tests' peaks: what is none, and tolerances that are none."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.integrations import Baseline, tolerance_of


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 99, "tests": {}}', '{"version": 1, "tests": {"a": 1}}']
)
def test_other_file_is_no_baseline(content, tmp_path):
    path = tmp_path / "peaks.json"
    path.write_text(content, "utf-8")
    for update in (False, True):
        with pytest.raises(UsageError, match="is no baseline of this tensorlens"):
            Baseline(path, 0.05, update)


@pytest.mark.parametrize(("tolerance", "text"), [(0.05, "5%"), (0.005, "0.5%"), (0.0, "0%")])
def test_an_excess_tells_its_tolerance(tolerance, text, tmp_path):
    path = tmp_path / "peaks.json"
    path.write_text('{"version": 1, "tests": {"a": {"cpu": 1000}}}', "utf-8")
    said = Baseline(path, tolerance, False).excess("a", {"cpu": 2000})
    assert f"(tolerance {text}; " in said


def test_baseline_tolerances():
    assert [tolerance_of(text) for text in ("5%", "0.05", "0")] == [0.05, 0.05, 0]
    for text in ("lots", "-1%", "nan", ""):
        with pytest.raises(UsageError, match="write for example 5%"):
            tolerance_of(text)
