"""``tensorlens run``: what is profiled, where the figures go, what it says, what it refuses."""

import csv
import re
import signal
import subprocess
import sys

import pytest
from commands import environment, own_lines, tensorlens

from tensorlens import LineReport
from tensorlens.cli import main
from tests import warm

DECORATED = """\
import tensorlens

@tensorlens.profile
def step(count):
    items = [0] * count
    return items

for _ in range(3):
    step(10)
"""

PLAIN = """\
import sys
from nets.core import grow, Net
from nets import shrink

def main():
    print(grow(2), Net().forward(3), shrink(4))

if __name__ == "__main__":
    main()
"""

CORE = """\
import functools

def grow(value):
    def inner(more):
        return more + 1
    return inner(value)

def unused():
    return 0

class Net:
    def __init__(self):
        self.weight = 2

    @property
    def double(self):
        return self.weight * 2

    @staticmethod
    def half(value):
        return value / 2

    @functools.lru_cache
    def forward(self, value):
        return self.double + self.half(value)
"""

OTHER = """\
def shrink(value):
    return value - 1
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "step.py").write_text(DECORATED)
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "nets" / "__init__.py").write_text("from .other import shrink as shrink\n")
    (tmp_path / "nets" / "core.py").write_text(CORE)
    (tmp_path / "nets" / "other.py").write_text(OTHER)
    return tmp_path


def calls(folder, *arguments):
    """The functions of the report and how often each was called."""
    done = tensorlens(folder, "run", "-f", "-o", "out.json", *arguments)
    assert done.returncode == 0, done.stderr
    report = LineReport.from_json((folder / "out.json").read_text("utf-8"))
    return {function.qualname: function.calls for function in report.functions}


NET = {"Net.__init__": 1, "Net.forward": 1, "Net.double": 1, "Net.half": 1}
GROW = {"grow": 1, "grow.<locals>.inner": 1}


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (["plain.py"], {"main": 1}),
        (["plain"], {"main": 1}),
        (["__main__.main"], {"main": 1}),
        (["nets.core"], {**GROW, **NET}),
        (["nets/core.py"], {**GROW, **NET}),
        (["nets"], {**GROW, **NET, "shrink": 1}),
        (["nets/"], {**GROW, **NET, "shrink": 1}),
        (["nets.core.grow"], GROW),
        (["nets.core.Net"], NET),
        (["nets.core.Net.forward"], {"Net.forward": 1}),
        (["nets.other.shrink"], {"shrink": 1}),
        (["nets.core.unused"], {"unused": 0}),
        (
            ["nets.other.shrink", "plain.py", "nets.core.Net.half"],
            {"shrink": 1, "main": 1, "Net.half": 1},
        ),
        (["."], {**GROW, **NET, "shrink": 1, "main": 1}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_only_functions_named_by_p_are_profiled(folder, options, seen):
    named = [word for option in options for word in ("-p", option)]
    assert calls(folder, *named, "plain.py") == seen


def test_p_and_m_go_together(folder):
    assert calls(folder, "-p", "plain", "-m", "plain") == {"main": 1}
    (folder / "nets" / "__main__.py").write_text("from .core import grow\ngrow(1)\n")
    assert calls(folder, "-p", "nets", "-m", "nets") == GROW


@pytest.mark.parametrize("named", ["src", "src/", "src.models", "src.models.net"])
def test_folders_without_an_init_are_found_as_python_finds_them(folder, named):
    (folder / "src" / "models").mkdir(parents=True)
    (folder / "src" / "models" / "net.py").write_text("def grow():\n    pass\n")
    (folder / "src" / "models" / "train.py").write_text("from src.models import net\nnet.grow()\n")
    assert calls(folder, "-p", named, "-m", "src.models.train") == {"grow": 1}
    done = tensorlens(folder, "run", "-p", named, "-m", "src.models.train")
    assert done.stderr.endswith(f"run -p {named} -o train.json -m src.models.train\n")


def test_p_passes_over_finders_that_python_no_longer_asks(folder):
    (folder / "old.py").write_text(
        "import sys\nclass Old:\n    def find_module(self, name, path=None):\n        pass\n"
        "sys.meta_path.insert(1, Old())\nfrom nets.core import grow\ngrow(1)\n"
    )
    assert calls(folder, "-p", "nets.core.grow", "old.py") == GROW


def test_p_finds_what_is_imported_late_and_by_other_modules(folder):
    (folder / "late.py").write_text(
        "def go():\n    from nets.core import grow as g\n    g(1)\ngo()\n"
    )
    assert calls(folder, "-p", "nets.core", "late.py") == GROW


def test_p_leaves_code_alone_that_is_compiled_from_its_source(folder):
    (folder / "kernels.py").write_text(
        "def jit(f):\n    assert f.__code__.co_name == f.__name__\n    return f\n"
        "class numba:\n    njit = staticmethod(lambda **_: jit)\n"
        "@jit\ndef one(): return 1\n"
        "@numba.njit(cache=True)\ndef two(): return 2\n"
        "one(), two()\n"
    )
    assert calls(folder, "-p", "kernels.py", "kernels.py") == {"jit": 2}


def test_p_keeps_the_options_of_decorators(folder):
    script = DECORATED.replace("@tensorlens.profile", "@tensorlens.profile(every=2)")
    (folder / "every.py").write_text(script)
    done = tensorlens(folder, "run", "-p", "every.py", "every.py")
    assert re.findall(r"step .* (\d call)", done.stdout) == ["2 call", "1 call"]


def test_without_o_the_table_is_printed_and_the_next_command_told(folder):
    done = tensorlens(folder, "run", "step.py", "--lr", "0 1")
    assert done.returncode == 0
    assert re.search(r"^step  \S*step\.py:3  3 calls$", done.stdout, re.MULTILINE)
    assert done.stdout.count("Memory per line") == 1
    assert done.stderr == (
        "tensorlens: to keep these figures: tensorlens run -o step.json step.py --lr '0 1'\n"
    )


@pytest.mark.parametrize(
    ("ending", "following"),
    [
        ("json", "tensorlens show out.json"),
        ("html", "open out.html in a browser"),
        ("csv", "head out.csv"),
        ("txt", "less out.txt"),
    ],
)
def test_o_writes_the_format_of_its_ending(folder, ending, following):
    out = folder / f"out.{ending}"
    done = tensorlens(folder, "run", "-o", out.name, "step.py")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"tensorlens: wrote {out.name}; next: {following}\n"
    content = out.read_text("utf-8")
    if ending == "json":
        assert LineReport.from_json(content).functions[0].calls == 3
        shown = tensorlens(folder, "show", out.name)
        assert "step.py:3  3 calls" in shown.stdout
    elif ending == "csv":
        assert len(list(csv.DictReader(content.splitlines()))) >= 2
    else:
        assert "step" in content and "items = [0] * count" in content


def test_o_takes_blocks_and_every_too(folder):
    (folder / "parts.py").write_text(
        "import tensorlens\n"
        "@tensorlens.profile(every=2)\n"
        "def f():\n"
        "    return 1\n"
        "for _ in range(5):\n"
        "    f()\n"
        "for _ in range(3):\n"
        "    with tensorlens.profile:\n"
        "        x = 1\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "parts.py")
    assert done.stdout == ""
    report = LineReport.from_json((folder / "out.json").read_text("utf-8"))
    assert {function.name: function.calls for function in report.functions} == {
        "f": 5,
        "with block in module": 3,
    }
    hits = {line.lineno: line.hits for each in report.functions for line in each.lines}
    assert hits[4] == 5 and hits[9] == 3


def test_o_adds_up_a_block_that_is_open_several_times(folder):
    (folder / "down.py").write_text(
        "import tensorlens\n"
        "def down(level):\n"
        "    with tensorlens.profile:\n"
        "        if level:\n"
        "            down(level - 1)\n"
        "        x = 1\n"
        "down(2)\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "down.py")
    assert done.returncode == 0, done.stderr
    (function,) = LineReport.from_json((folder / "out.json").read_text("utf-8")).functions
    assert function.calls == 3
    assert {line.lineno: line.hits for line in function.lines} == {3: 3, 4: 3, 5: 2, 6: 3}


def test_o_adds_up_a_block_whose_code_is_compiled_anew(folder):
    (folder / "cells.py").write_text(
        "import tensorlens\n"
        "for _ in range(3):\n"
        "    exec(compile('with tensorlens.profile:\\n    x = 1\\n', 'cell', 'exec'))\n"
        "exec(compile('with tensorlens.profile:\\n    x = 2\\n', 'cell', 'exec'))\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "cells.py")
    assert done.returncode == 0, done.stderr
    report = LineReport.from_json((folder / "out.json").read_text("utf-8"))
    assert [each.calls for each in report.functions] == [3, 1]
    assert [each.lines[-1].hits for each in report.functions] == [3, 1]


def test_blocks_that_end_in_another_thread_or_frame(folder):
    (folder / "elsewhere.py").write_text(
        "import contextlib, sys, threading, tensorlens\n"
        "def steps():\n"
        "    with tensorlens.profile:\n"
        "        for number in range(3):\n"
        "            yield number\n"
        "def rest():\n"
        "    print([*begun])\n"
        "begun = steps()\n"
        "next(begun)\n"
        "thread = threading.Thread(target=rest)\n"
        "thread.start()\n"
        "thread.join()\n"
        "with contextlib.ExitStack() as stack:\n"
        "    stack.enter_context(tensorlens.profile)\n"
        "(lambda: None)()\n"
        "print(sys.gettrace())\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "elsewhere.py")
    assert (done.returncode, done.stdout) == (0, "[1, 2]\nNone\n")
    assert "Traceback" not in done.stderr
    functions = LineReport.from_json((folder / "out.json").read_text("utf-8")).functions
    assert [each.calls for each in functions if each.name.endswith("steps()")] == [1]


def test_o_adds_up_a_block_that_two_threads_begin_at_once(folder):
    (folder / "threads.py").write_text(
        "import linecache, threading, tensorlens\n"
        "read, both = linecache.getlines, threading.Barrier(2)\n"
        "def read_together(*where):\n"
        "    both.wait()\n"
        "    return read(*where)\n"
        "def work():\n"
        "    with tensorlens.profile:\n"
        "        x = 1\n"
        "linecache.getlines = read_together\n"
        "threads = [threading.Thread(target=work) for _ in range(2)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join()\n"
        "linecache.getlines = read\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "threads.py")
    assert done.returncode == 0, done.stderr
    (function,) = LineReport.from_json((folder / "out.json").read_text("utf-8")).functions
    assert function.calls == 2
    assert {line.lineno: line.hits for line in function.lines} == {7: 2, 8: 2}


def test_blocks_of_a_forked_child_are_its_own(folder):
    (folder / "forks.py").write_text(
        "import os, tensorlens\n"
        "def work(times):\n"
        "    for _ in range(times):\n"
        "        with tensorlens.profile:\n"
        "            x = 1\n"
        "work(3)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    os.waitpid(child, 0)\n"
        "else:\n"
        "    work(2)\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "forks.py")
    assert done.returncode == 0, done.stderr
    of_child, of_parent = sorted(folder.glob("out*.json"))
    calls = [
        LineReport.from_json(each.read_text()).functions[0].calls for each in (of_child, of_parent)
    ]
    assert calls == [2, 3]


@pytest.mark.parametrize(("number", "options"), [
    (signal.SIGTERM, []), (signal.SIGTERM, ["-o", "out.json"]), (signal.SIGINT, ["-o", "out.json"]),
])  # fmt: skip
def test_the_report_is_there_when_a_signal_ends_it(folder, number, options):
    script = f"{DECORATED}\nimport time\nprint('ready', flush=True)\ntime.sleep(600)\n"
    (folder / "waits.py").write_text(script)
    child = subprocess.Popen(
        [*warm.python(bare=True, ends=True), "-m", "tensorlens", "run", *options, "waits.py"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment(),
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    out, err = child.communicate(timeout=120)
    assert child.returncode == -number
    assert out.count("3 calls") == (0 if options else 1)
    assert (folder / "out.json").exists() == bool(options)
    assert len(own_lines(err)) == 1


def test_a_file_that_appeared_meanwhile_is_not_overwritten(folder):
    (folder / "makes.py").write_text(f"{DECORATED}\nopen('out.json', 'w').write('mine')\n")
    done = tensorlens(folder, "run", "-o", "out.json", "makes.py")
    assert (folder / "out.json").read_text() == "mine"
    assert "3 calls" in done.stdout
    assert "exists" in done.stderr


def test_force_option_overwrites(folder):
    (folder / "out.txt").write_text("old")
    assert tensorlens(folder, "run", "-f", "-o", "out.txt", "step.py").returncode == 0
    assert "3 calls" in (folder / "out.txt").read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nope.py"], 1, "there is no script nope.py"),
        (["nets"], 1, "nets is a folder: name the script in it, or the package with -m"),
        (["-m", "nope"], 1, "there is no module nope"),
        (["-m", "nets.nope"], 1, "there is no module nets.nope"),
        (["-m", "step.py"], 1, "there is no module step.py; did you mean -m step?"),
        (["-m", "nets"], 1, "nets is a package without a __main__: name a module"),
        (["-m", "sys"], 1, "the module sys cannot be run: it has no Python code"),
        (["-p", "nope", "mark.py"], 1, "-p nope: no file, module or function by that name"),
        (["-p", "nope.py", "mark.py"], 1, "-p nope.py: there is no such file"),
        (["-p", "nets/nope", "mark.py"], 1, "-p nets/nope: there is no such file"),
        (["-p", "data.txt", "mark.py"], 1, "-p data.txt: not a Python source file (.py)"),
        (
            ["-p", "work", "mark.py"],
            1,
            "-p work: no file, module or function by that name; for the one in mark.py:"
            " -p __main__.work",
        ),
        (["-p", "math", "mark.py"], 1, "-p math: math has no Python source (it is built in)"),
        (["-p", "tensorlens.units", "mark.py"], 1, "-p tensorlens.units: tensorlens cannot profile"
         " itself"),
        (
            ["-p", "json", "mark.py"],
            1,
            "-p json: tensorlens itself uses it and has imported it; profile the function that"
            " calls it",
        ),
        (["-p", "", "mark.py"], 2, "-p: give a file, folder, module or module.function"),
        (
            ["-o", "out.xyz", "mark.py"],
            2,
            "cannot tell the format of 'out.xyz': the endings known are .csv, .folded, .html,"
            " .json, .perfetto.json, .pickle, .speedscope.json, .tlens, .tlens.gz,"
            " .trace.json, .txt",
        ),
        (
            ["-o", "old.json", "mark.py"],
            2,
            "old.json exists: choose another name, or overwrite it with -f",
        ),
        (["-o", "dir.json", "mark.py"], 1, "cannot write dir.json: it is a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_bad_run_options_are_refused_before_the_program_runs(
    folder, capsys, monkeypatch, arguments, code, text
):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["tensorlens"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "mark.py").write_text("def work(): pass\nopen('ran', 'w')\n")
    (folder / "data.txt").write_text("")
    (folder / "old.json").write_text("precious")
    (folder / "dir.json").mkdir()
    assert main(["run", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"tensorlens: error: {text}\n"
    assert not (folder / "ran").exists()
    assert (folder / "old.json").read_text() == "precious"


def test_a_function_a_module_does_not_have_is_refused(folder):
    done = tensorlens(folder, "run", "-p", "nets.core.nope", "plain.py")
    assert done.returncode == 1
    assert done.stderr == (
        f"tensorlens: error: -p nets.core.nope: {folder}/nets/core.py defines no function or"
        " class nope\n"
    )


def test_a_program_that_does_not_name_tensorlens_is_profiled_itself(folder):
    (folder / "itself.py").write_text("def f():\n    return 1\nf()\n")
    for words in (["itself.py"], ["-m", "itself"]):
        done = tensorlens(folder, "run", *words)
        assert "f  itself.py:1  1 call" in done.stdout
        named = tensorlens(folder, "run", "-p", words[-1], *words)
        assert "f  itself.py:1  1 call" in named.stdout
    (folder / "marked.py").write_text("import tensorlens\ndef f():\n    return 1\nf()\n")
    done = tensorlens(folder, "run", "marked.py")
    assert done.stdout == ""
    assert done.stderr == (
        "tensorlens: nothing was profiled: decorate a function with @tensorlens.profile, or"
        " profile all of marked.py: tensorlens run -p marked.py marked.py\n"
    )


def test_a_recorded_program_is_not_profiled_unless_asked(folder):
    (folder / "itself.py").write_text("def f():\n    return 1\nf()\n")
    done = tensorlens(folder, "run", "--record", "r.tlens", "itself.py")
    assert done.stdout == ""


def test_note_when_nothing_of_a_target_ran(folder):
    (folder / "idle.py").write_text("import nets.core\nprint('hello')\n")
    done = tensorlens(
        *(folder, "run", "-o", "out.json", "-p", "nets.core", "-p", "idle.py"),
        *("-p", "plain", "idle.py"),
    )
    assert done.stdout == "hello\n"
    assert done.stderr.splitlines() == [
        "tensorlens: -p nets.core: its 6 functions were never called",
        "tensorlens: -p idle.py: no function of it was defined; put the lines into one, or into a"
        " block: with tensorlens.profile:",
        "tensorlens: -p plain: the program never imported it",
        "tensorlens: nothing was profiled, so out.json was not written",
    ]
    assert not (folder / "out.json").exists()


def test_tensor_bytes_are_exact(folder):
    pytest.importorskip("torch")
    (folder / "tensors.py").write_text(
        "import torch\n"
        "def work():\n"
        "    a = torch.ones(1000)\n"
        "    b = torch.ones(2, 1024)\n"
        "    del a\n"
        "    return b\n"
        "work()\n"
    )
    done = tensorlens(folder, "run", "-o", "out.json", "-p", "tensors.py", "tensors.py")
    assert done.returncode == 0, done.stderr
    report = LineReport.from_json((folder / "out.json").read_text("utf-8"))
    if report.devices[0].precision != "exact bytes":
        pytest.skip(f"counted by {report.devices[0].source}")
    memory = {line.lineno: line.memory.get("cpu") for line in report.functions[0].lines}
    # 4 bytes an element: 1000 x 4, then 2 x 1024 x 4 more, then without the first
    assert [memory[line].net for line in (3, 4, 5, 6)] == [4000, 8192, -4000, 0]
    assert [memory[line].allocated for line in (3, 4, 5, 6)] == [4000, 12192, 8192, 8192]
    assert memory[4].peak == 12192
    table = tensorlens(folder, "show", "out.json").stdout
    assert "+3.91 KiB  │     a = torch.ones(1000)" in table
    assert "● +8.00 KiB  │     b = torch.ones(2, 1024)" in table


def test_function_of_p_that_was_never_called_is_said_beside_a_block_that_ran(folder):
    (folder / "library.py").write_text(
        "import tensorlens\n"
        "def unused():\n"
        "    pass\n"
        "def run():\n"
        "    with tensorlens.profile:\n"
        "        x = 1\n"
    )
    (folder / "uses.py").write_text("import library\nlibrary.run()\n")
    done = tensorlens(folder, "run", "-p", "library.unused", "-o", "out.json", "uses.py")
    assert "tensorlens: -p library.unused: its function was never called" in own_lines(done.stderr)
    (function,) = LineReport.from_json((folder / "out.json").read_text("utf-8")).functions[1:]
    assert function.name == "with block in run()"
