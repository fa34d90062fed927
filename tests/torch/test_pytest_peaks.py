"""The plugin of pytest over all tests: the hungriest, a baseline, and the fixture."""

import json
import os
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch.nn")

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
CACHE = os.environ.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
TESTS = """
import torch

def test_small():
    torch.zeros({small})

def test_large():
    first = torch.zeros(1 << 18)
    del first
    torch.zeros({large})

def test_none():
    pass
"""
A = "import torch\ndef test_a(): pass\n"


@pytest.fixture
def run(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # a file that is written anew within a second is not to be taken for the one before
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(*arguments, plugins=(), bare=False, **sources):
        if sources:
            pytester.makepyfile(**sources)
        named = ("tensorlens.integrations.pytest", *plugins)
        given = [option for plugin in named for option in ("-p", plugin)]
        return pytester.run(*warm.python(bare=bare), "-m", "pytest", *given, *arguments)

    return run


def peaks(pytester, name="peaks.json"):
    return json.loads((pytester.path / name).read_text("utf-8"))["tests"]


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_the_hungriest_are_listed_and_a_peak_above_the_baseline_fails(run, pytester, workers):
    plugins = ("xdist.plugin",) if workers else ()
    options = ("--tensorlens-baseline", "peaks.json", *workers)
    sources = {"test_it": TESTS.format(small=256, large=1)}
    first = run("--tensorlens", *options, "--tensorlens-update", plugins=plugins, **sources)
    first.assert_outcomes(passed=3)
    first.stdout.fnmatch_lines(
        [
            "*memory of tensors, the hungriest tests*",
            "   1.00 MiB  cpu     test_it.py::test_large",
            "   1.00 KiB  cpu     test_it.py::test_small",
        ]
    )
    assert "test_none" not in first.stdout.str().partition("hungriest")[2]
    assert peaks(pytester) == {
        "test_it.py::test_large": {"cpu": 1 << 20},
        "test_it.py::test_none": {"cpu": 0},
        "test_it.py::test_small": {"cpu": 1024},
    }
    # 1072 B is less than 5 % above 1 KiB, 1.2 MB is more above 1 MiB
    above = run(*options, plugins=plugins, test_it=TESTS.format(small=268, large=300_000))
    above.assert_outcomes(passed=2, failed=1)
    above.stdout.fnmatch_lines(["*cpu: 1.14 MiB at the highest instant of the test, 1.00 MiB in*"])


def test_a_test_that_the_baseline_does_not_have_is_told(run, pytester):
    options = ("--tensorlens-baseline", "peaks.json")
    run(*options, "--tensorlens-update", test_it=A).assert_outcomes(passed=1)
    result = run(*options, test_it=f"{A}def test_b(): pass")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["tensorlens: 1 test is not in *; --tensorlens-update adds them"])
    # the update of one file keeps what another has
    run(
        *options,
        "--tensorlens-update",
        "test_more.py",
        test_more="import torch\ndef test_c(): pass",
    )
    assert list(peaks(pytester)) == ["test_it.py::test_a", "test_more.py::test_c"]


def test_an_update_keeps_the_figure_of_a_test_that_cannot_be_measured(run, pytester):
    options = ("--tensorlens-baseline", "peaks.json", "--tensorlens-update")
    run(*options, test_it=A).assert_outcomes(passed=1)
    assert peaks(pytester) == {"test_it.py::test_a": {"cpu": 0}}
    run(*options, bare=True, test_it="def test_a(): pass").assert_outcomes(passed=1)
    assert peaks(pytester) == {"test_it.py::test_a": {"cpu": 0}}


def test_bad_input_gets_one_line_before_any_test_runs(run):
    result = run("--tensorlens-baseline", "peaks.json", test_it="def test_a(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: tensorlens: there is no file *; --tensorlens-update *"])


def test_a_word_after_the_option_that_is_no_number_is_told_what_to_write(run):
    result = run("--tensorlens", "test_it.py", test_it="def test_a(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = "'test_it.py' is no number: write --tensorlens=10, or put it after the tests"
    result.stderr.fnmatch_lines([f"*--tensorlens: {text}"])


def test_the_fixture_tells_a_test_what_it_took(run):
    source = """
import pytest
import torch

def test_peak(tensor_memory):
    first = torch.zeros(1000)
    assert tensor_memory.peak() == 4000
    del first
    torch.zeros(500)
    assert tensor_memory.peak("cpu") == 4000
    tensor_memory.restart()
    second = torch.zeros(500)
    assert tensor_memory.peak() == 2000

@pytest.mark.limit_tensor_memory("2000 B", device="cpu")
def test_beside_a_limit(tensor_memory):
    torch.zeros(500)
    assert tensor_memory.peak() == 2000
    torch.zeros(501)
"""
    result = run("--tensorlens", test_it=source)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*cpu: 1.96 KiB at the highest instant of the test, its limit is 1.95 KiB*",
            "   3.91 KiB  cpu     test_it.py::test_peak",
        ]
    )
