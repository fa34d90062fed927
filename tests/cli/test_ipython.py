"""The magics, in an IPython shell of the test's own process."""

import re
import sys

import pytest

pytest.importorskip("IPython")

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from tensorlens import LineProfiler, LineReport

SETUP = """
def grow(value):
    more = value + 1
    return more

class Net:
    def forward(self, value):
        return grow(value)

def fail():
    raise ValueError('no such thing')
"""


@pytest.fixture(scope="module")
def only_shell():
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance()
    shell.colors = "nocolor"
    shell.run_cell("%load_ext tensorlens")
    yield shell
    shell.run_cell("%unload_ext tensorlens")
    InteractiveShell.clear_instance()
    # the shell has put its own there, of which multiprocessing can spawn nothing
    sys.modules["__main__"] = main


@pytest.fixture
def shell(only_shell):
    only_shell.reset(new_session=False)
    only_shell.run_cell(SETUP)
    return only_shell


def run(shell, source):
    """What a cell prints, and whether it went well."""
    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    shown = "".join(str(output.data.get("text/plain", "")) for output in captured.outputs)
    return captured.stdout + shown + captured.stderr, result


def test_a_statement_shows_the_lines_of_its_function(shell):
    text, result = run(shell, "%tlrun -f grow y = grow(2)")
    assert result.success
    assert re.search(r"^grow  .*  1 call\b", text, re.MULTILINE)
    assert "more = value + 1" in text
    assert shell.user_ns["y"] == 3


def test_a_cell_tells_what_its_backward_pass_found(shell):
    run(shell, "import torch")
    text, result = run(
        shell,
        "%%tlrun\nx = torch.ones(1024, requires_grad=True)\nloss = x.sum()\nloss.backward()",
    )
    assert result.success
    assert re.search(r"before it +4\.00 KiB left by In \[\d+\]:1 in cell", text)


def test_functions_may_be_methods_and_several(shell):
    run(shell, "%tlrun -f Net.forward -f grow -q -r Net().forward(1)")
    report = shell.user_ns["_"]
    assert isinstance(report, LineReport)
    assert [(each.qualname, each.calls) for each in report.functions] == [
        ("Net.forward", 1),
        ("grow", 1),
    ]


def test_r_returns_the_report_and_shows_nothing_else(shell):
    text, _ = run(shell, "report = %tlrun -r -f grow grow(2)")
    assert text == ""
    assert shell.user_ns["report"].functions[0].calls == 1


def test_a_cell_shows_its_own_lines_and_the_functions_it_defines(shell):
    cell = "%%tlrun -r\nimport string\nitems = [1, 2]\n\ndef total(x):\n    return sum(x)\n\n"
    text, result = run(shell, cell + "answer = total(items)\nanswer + 1\n")
    assert result.success, text
    report = shell.user_ns["_"]
    assert [(each.qualname, each.calls) for each in report.functions] == [("cell", 1), ("total", 1)]
    lines = report.functions[0].lines
    assert [(line.lineno, line.hits) for line in lines if line.hits] == [
        (2, 1),
        (4, 1),
        (7, 1),
        (8, 1),
    ]
    assert lines[6].source == "answer = total(items)"
    assert shell.user_ns["answer"] == 3
    assert "Out[" in text and ": 4" in text
    assert not [name for name in shell.user_ns if name.startswith("__tensorlens")]


def test_functions_of_a_profiled_cell_stay_as_they_are(shell):
    run(shell, "%%tlrun\ndef total(x):\n    return sum(x)\ntotal([1])")
    assert shell.user_ns["total"].__code__.co_name == "total"
    assert not hasattr(shell.user_ns["total"], "__wrapped__")
    text, result = run(shell, "total([1, 2])")
    assert result.result == 3 and "Memory" not in text


def test_a_cell_with_f_shows_that_function_only(shell):
    text, _ = run(shell, "%%tlrun -f grow\nx = grow(1)\nprint('printed', x)")
    assert text.startswith("printed 2\n")
    assert "more = value + 1" in text
    assert "cell  " not in text


@pytest.mark.parametrize("magic", ["tlrun", "mlrun"])
def test_functions_that_the_cell_defines_are_profiled_by_name(shell, magic):
    # `grow` is defined before the cell too: the cell's own is what runs
    cell = """
class Block:
    def forward(self, value):
        return grow(value) * 2

def grow(value):
    return value + 40

print(Block().forward(1))
"""
    text, result = run(shell, f"%%{magic} -f grow -f Block.forward{cell}")
    assert result.success and "82" in text.split()
    titles = re.findall(r"^(\S+)  In \[\d+\]:\d+  (?:1 call|never called)", text, re.M)
    assert titles == ["grow", "Block.forward"]
    assert re.search(r"^ +6 +1 .*return value \+ 40$", text, re.M)
    assert "never called" not in text


def test_a_name_that_the_cell_only_assigns_is_refused_in_one_line(shell):
    text, _ = run(shell, "%%tlrun -f bound\nbound = Net().forward\nprint('ran')")
    assert "-f bound: NameError: name 'bound' is not defined" in text
    assert "ran" not in text.split()


def test_a_cell_that_is_refused_leaves_no_name_behind(shell):
    before = set(shell.user_ns)
    text, _ = run(shell, "%%tlrun -f nosuch\n1")
    assert "-f nosuch: NameError" in text
    assert {each for each in set(shell.user_ns) - before if each.startswith("__")} == set()


def test_quotes_and_dashes_in_a_statement_are_its_own(shell):
    run(shell, """%tlrun -q -f grow z = grow(-1) - len("a -f b  c")""")
    assert shell.user_ns["z"] == 0 - 9
    run(shell, "%tlrun -q -f grow -- -grow(1)")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("%tlrun -f nope grow(1)", "-f nope: NameError: name 'nope' is not defined"),
        ("%tlrun -f Net.nope grow(1)", "-f Net.nope: AttributeError: "),
        ("%tlrun -f len len([])", "cannot profile len: it is built in and has no Python lines"),
        ("%tlrun -f Net Net()", "cannot profile the class Net: put @profile on its methods"),
        ("%tlrun grow(1)", "name what to profile: %tlrun -f FUNC STATEMENT; the lines of a whole"),
        ("%tlrun", "give a statement to run: %tlrun -f FUNC STATEMENT"),
        ("%tlrun -f grow", "give a statement to run: %tlrun -f FUNC STATEMENT"),
        ("%tlrun -z grow(1)", "unrecognized arguments: -z"),
        ("%mlrun -f nope grow(1)", "-f nope: NameError: name 'nope' is not defined"),
    ],
)
def test_mistakes_get_one_line(shell, source, text):
    shown, result = run(shell, source)
    assert not result.success
    assert shown.startswith(f"UsageError: {text}")
    assert shown.rstrip().count("\n") == 0


@pytest.mark.parametrize("source", ["%tlrun -f fail fail()", "%%tlrun\nx = 1\nfail()"])
def test_an_error_comes_after_the_report_and_as_ipython_shows_it(shell, source):
    text, result = run(shell, source)
    assert isinstance(result.error_in_exec, ValueError)
    assert "ValueError: no such thing" in text
    assert "tensorlens/integrations" not in text
    assert "Memory per line" in text
    assert re.search(r"✗ line \d+ raised ValueError: no such thing", text)


def test_a_syntax_error_shows_no_report(shell):
    text, result = run(shell, "%%tlrun\nx = = 3")
    assert not result.success
    assert text == "UsageError: SyntaxError: invalid syntax (line 1: x = = 3)\n"
    text, _ = run(shell, "%%tlrun\nimport asyncio\nawait asyncio.sleep(0)")
    assert text.startswith(
        "UsageError: SyntaxError: 'await' outside function: put it in a function"
    )


def test_t_writes_a_file_in_the_format_of_its_ending_else_text(shell, tmp_path):
    for name, start in (("a.json", "{"), ("a.html", "<!"), ("a.out", "Memory per line")):
        text, _ = run(shell, f"%tlrun -q -T '{tmp_path / name}' -f grow grow(1)")
        assert text == f"Wrote {tmp_path / name}\n"
        assert (tmp_path / name).read_text("utf-8").startswith(start)
    text, result = run(shell, f"%tlrun -q -T {tmp_path}/no/a.txt -f grow grow(1)")
    assert not result.success
    assert text.startswith("UsageError: cannot write ")


def test_mlrun_answers_as_pytorch_memlab_users_type_it(shell, tmp_path):
    text, result = run(shell, "%mlrun -D -c allocated_bytes.all.peak -f grow grow(1)")
    assert result.success and "more = value + 1" in text
    run(shell, f"p = %mlrun -r -T {tmp_path}/dump -f grow grow(1)")
    assert isinstance(shell.user_ns["p"], LineProfiler)
    assert "more = value + 1" in (tmp_path / "dump").read_text("utf-8")
    text, _ = run(shell, "%%mlrun -q -f grow\ngrow(1)")
    assert "Memory" not in text


def test_help_is_complete(shell):
    help_text = shell.find_line_magic("tlrun").__doc__
    assert "%tlrun [-f FUNC] [-r] [-T FILE] [-q] [statement ...]" in help_text
    assert "%%tlrun" in help_text and "%%%" not in help_text
