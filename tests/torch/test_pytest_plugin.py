"""The plugin of pytest: limits on what tests take and leave behind, and leak reports shown."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import warm

pytest.importorskip("torch.nn")

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
# pytester gives its programs a home of their own; what is compiled is not compiled for each
CACHE = os.environ.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")

HEAD = """
import pytest
import torch

KEPT = []

"""


@pytest.fixture
def results(pytester, monkeypatch):
    """Runs a file of tests in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def run(source: str, *arguments: str, head: str = HEAD, interpreter: Sequence[str] = ()):
        pytester.makepyfile(head + source)
        given = ("-p", "tensorlens.integrations.pytest", "-p", "no:cacheprovider", *arguments)
        return pytester.run(*(interpreter or warm.python()), "-m", "pytest", *given)

    return run


def test_outliving_tensor_is_named(results) -> None:
    found = results(
        """
@pytest.mark.limit_tensor_leaks("0 B")
def test_keeps():
    KEPT.append(torch.zeros(256))

@pytest.mark.limit_tensor_leaks("1 KiB")
def test_within():
    KEPT.append(torch.zeros(256))

@pytest.mark.limit_tensor_leaks(1023)
def test_above():
    for _ in range(2):
        KEPT.append(torch.zeros(64))
    KEPT.append(torch.zeros(192))
"""
    )
    found.assert_outcomes(passed=1, failed=2)
    found.stdout.fnmatch_lines(
        [
            "*_ test_keeps _*",
            "1.00 KiB of tensors outlive the test, its limit is 0 B",
            "  1.00 KiB in 1 tensor, made at *.py:9 in test_keeps",
            "      KEPT.append(torch.zeros(256))",
            "    tensor   test_outliving_tensor*.KEPT[[]0[]]: float32 (256,)",
            "    held by  test_outliving_tensor*.KEPT (global) -> list[[]0[]]",
            "*_ test_above _*",
            "1.25 KiB of tensors outlive the test, its limit is 1023 B",
            "  768 B in 1 tensor, made at *.py:19 in test_above",
            "  512 B in 2 tensors, made at *.py:18 in test_above",
            "FAILED *::test_keeps - Failed: 1.00 KiB *",
        ]
    )


def test_what_a_fixture_frees_is_not_left_behind_and_other_outcomes_stay(results) -> None:
    found = results(
        """
@pytest.fixture
def net():
    return torch.nn.Linear(64, 64)

@pytest.fixture
def kept():
    yield KEPT
    KEPT.clear()

@pytest.fixture(scope="module")
def data():
    return torch.zeros(1000)

@pytest.mark.limit_tensor_leaks("0 B")
def test_gradients(net, kept, data):
    net(torch.ones(2, 64)).sum().backward()
    kept.append(torch.zeros(256))

@pytest.mark.limit_tensor_leaks("0 B")
def test_cycle():
    class Node:
        pass
    node = Node()
    node.me, node.data = node, torch.zeros(256)

@pytest.mark.limit_tensor_leaks("0 B")
def test_fails():
    KEPT.append(torch.zeros(256))
    assert len(KEPT) == 7

@pytest.mark.limit_tensor_leaks("0 B")
def test_skips():
    pytest.skip("not here")

@pytest.mark.limit_tensor_leaks("0 B")
@pytest.mark.xfail
def test_is_expected_to_fail():
    KEPT.append(torch.zeros(256))
    raise ValueError

@pytest.fixture
def broken():
    raise ValueError

@pytest.mark.limit_tensor_memory("0 B")
@pytest.mark.limit_tensor_leaks("0 B")
def test_never_runs(broken):
    pass
"""
    )
    found.assert_outcomes(passed=2, failed=1, skipped=1, xfailed=1, errors=1)
    found.stdout.fnmatch_lines(["*assert 1 == 7*"])
    found.stdout.no_fnmatch_line("*outlive*")


def test_the_highest_instant_is_limited_and_its_tensors_named(results) -> None:
    found = results(
        """
before = torch.zeros(2**20)

@pytest.mark.limit_tensor_memory("1 MiB")
def test_above():
    x = torch.zeros(2**19)
    del x

@pytest.mark.limit_tensor_memory("2 MiB", device="cpu")
def test_within():
    x = torch.zeros(2**19)

@pytest.mark.limit_tensor_memory("1 MiB", device="cuda:0")
@pytest.mark.skipif(torch.cuda.is_available(), reason="without one")
def test_elsewhere():
    x = torch.zeros(2**19)
"""
    )
    found.assert_outcomes(failed=1, passed=2, warnings=1)
    found.stdout.fnmatch_lines(
        [
            "cpu: 2.00 MiB at the highest instant of the test, its limit is 1.00 MiB",
            "  2.00 MiB  *, made at *.py:11 in test_above",
            "*PytestWarning: a limit on tensors was not checked: *cuda*",
        ]
    )
    found.stdout.no_fnmatch_line("  4.00 MiB*")


def test_limit_of_a_test_that_imports_torch_itself_is_said_to_be_unchecked(results) -> None:
    found = results(
        """
import sys

@pytest.mark.limit_tensor_memory("1 GiB")
@pytest.mark.limit_tensor_leaks("0 B")
def test_without():
    assert "torch" not in sys.modules

@pytest.mark.limit_tensor_leaks("0 B")
def test_with():
    import torch
    KEPT.append(torch.zeros(256))
""",
        head="import pytest\nKEPT = []\n",
    )
    found.assert_outcomes(passed=2, warnings=1)
    found.stdout.fnmatch_lines(
        ["*a limit on tensors was not checked: the test itself imported torch"]
    )


COMPLAINTS = [
    ("limit_tensor_leaks()", 'it takes one size, as in limit_tensor_leaks("64 MiB")'),
    ("limit_tensor_leaks('many')", "'many' is not a size: write for example"),
    ("limit_tensor_leaks(-1)", "-1 is not a size: it is negative"),
    ("limit_tensor_leaks(True)", "True is not a size"),
    ("limit_tensor_leaks('1 B', device='cpu')", "unknown argument 'device'"),
    ("limit_tensor_memory('1 B', device=0)", "0 is no device: write for example 'cuda:0'"),
    ("limit_tensor_memory('1 B', device='CPU 1')", "'CPU 1' is no device"),
]
EACH = """
import sys
import pytest

for name in sys.argv[1:]:
    code = pytest.main(["-p", "tensorlens.integrations.pytest", "-p", "no:cacheprovider", name])
    print(f"{name} ended: {int(code)}", file=sys.stderr)
"""


def test_a_marker_that_cannot_be_read_ends_collection(results, pytester) -> None:
    sources = [f"@pytest.mark.{mark}\ndef test_it():\n    pass\n" for mark, _ in COMPLAINTS]
    files = {f"test_{at}": "import pytest\n" + source for at, source in enumerate(sources)}
    pytester.makepyfile(**files)
    # a run each, all in one process
    found = pytester.run(*warm.python(), "-c", EACH, *[f"{name}.py" for name in files])
    assert found.ret == 0
    errors = [each for each in found.errlines if each]
    assert "Traceback" not in found.stderr.str()
    for at, (_, complaint) in enumerate(COMPLAINTS):
        line, end = errors[2 * at : 2 * at + 2]
        assert line.startswith("ERROR: ")
        assert f"test_{at}.py::test_it: limit_tensor_" in line and complaint in line
        assert end == f"test_{at}.py ended: {int(pytest.ExitCode.USAGE_ERROR)}"
    assert len(errors) == 2 * len(COMPLAINTS)


def test_markers_are_registered(results) -> None:
    found = results("def test_it():\n    pass\n", "--markers", "--strict-markers", head="")
    found.stdout.fnmatch_lines(
        ['@pytest.mark.limit_tensor_leaks("0 B"): *', "@pytest.mark.limit_tensor_memory(*): *"]
    )


def test_nothing_is_imported_for_tests_without_a_marker(results) -> None:
    results(
        """
import sys

def test_it():
    assert not any(name.startswith("torch") for name in sys.modules)
    loaded = [name.split(".") for name in sys.modules if name.startswith("tensorlens.")]
    assert {name[1] for name in loaded} == {"errors", "integrations", "lazy", "units"}
    assert {name[2] for name in loaded if len(name) > 2} == {"pytest"}
""",
        head="",
        # a warm one has all of tensorlens as soon as anything of it is imported
        interpreter=[sys.executable],
    ).assert_outcomes(passed=1)


def test_an_assertion_on_a_leak_report_shows_it(results) -> None:
    found = results(
        """
import tensorlens

def step(number):
    KEPT.append(torch.zeros(4))

def test_direct():
    assert not tensorlens.find_leaks(step)
"""
    )
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        [
            "E *assert not <LeakReport: *leak: 1 tensor and 16 B stay behind in each step; made at"
            " *.py:10 in step, held by *.KEPT (global) -> list[[]*",
        ]
    )


def test_first_failure_ends_the_run(results) -> None:
    found = results(
        """
@pytest.mark.limit_tensor_leaks("0 B")
def test_keeps():
    KEPT.append(torch.zeros(256))

def test_next():
    pass
""",
        "-x",
    )
    found.assert_outcomes(failed=1)


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [((), {"passed": 2, "warnings": 1}), (("-W", "error"), {"passed": 1, "failed": 1})],
)
def test_a_limit_that_cannot_be_judged_is_a_warning(results, options, outcomes) -> None:
    found = results(
        """
from tensorlens.leaks import AllocationScope

def fail(self):
    raise RuntimeError("inner")

AllocationScope.remains = fail

@pytest.mark.limit_tensor_leaks("0 B")
def test_first():
    pass

def test_next():
    pass
""",
        *options,
    )
    found.assert_outcomes(**outcomes)
    found.stdout.fnmatch_lines(["*a limit on tensors was not checked: inner"])
    found.stdout.no_fnmatch_line("*INTERNALERROR*")
