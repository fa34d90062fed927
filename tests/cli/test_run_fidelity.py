"""``tensorlens run`` changes nothing the program can see: each test compares with ``python``."""

import signal
import sys

import pytest
from commands import fresh_tensorlens, own_lines, program_lines, python, tensorlens

from tensorlens import load

LOOK = """
import json, os, pickle, re, sys
class Thing: pass
seen = {name: re.sub("0x[0-9a-f]+", "0x", str(value)) for name, value in globals().items()
        if name != "__builtins__"}
seen.update(
    argv=sys.argv, first=sys.path[0], folder=os.getcwd(), stdin=sys.stdin.read(),
    pickled=pickle.dumps(Thing()).hex(), same=type(pickle.loads(pickle.dumps(Thing()))) is Thing,
    main=vars(sys.modules["__main__"]) is globals(), code=sys._getframe().f_code.co_filename,
)
print(json.dumps(seen, sort_keys=True))
sys.stderr.write("to stderr")
"""

FAIL = """
import os, signal, sys
def fail(how):
    if how == "raise":
        raise ValueError("no such thing")
    if how == "cause":
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise RuntimeError("because") from error
    if how == "context":
        try:
            fail("raise")
        finally:
            fail("raise")
    if how == "group":
        raise ExceptionGroup("several", [ValueError(1), TypeError(2)])
    if how == "arguments":
        fail()
    if how == "number":
        sys.exit(3)
    if how == "text":
        sys.exit("farewell")
    if how == "none":
        sys.exit()
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "terminate":
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "hook":
        sys.excepthook = lambda kind, error, tb: print("hook", error, tb.tb_frame.f_code.co_name)
        raise ValueError("for the hook")
    if how == "hook-exits":
        sys.excepthook = lambda *_: sys.exit(7)
        raise ValueError("for the hook")
fail(sys.argv[1])
"""


def same(plain, profiled):
    assert program_lines(profiled.stderr) == plain.stderr.splitlines()
    assert profiled.stdout == plain.stdout
    assert profiled.returncode == plain.returncode


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "sub" / "pkg").mkdir(parents=True)
    for name in ("look.py", "pkg/__init__.py", "pkg/look.py", "pkg/__main__.py", "__main__.py"):
        (tmp_path / "sub" / name).write_text("" if "init" in name else LOOK)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "look.py")
    (tmp_path / "fail.py").write_text(FAIL)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("look.py", "a", "-p", "-o", "--version", "--", "x y"),
        ("sub/look.py",),
        ("link.py",),
        ("-m", "look", "-x", "-p"),
        ("-m", "sub.pkg.look"),
        ("-m", "sub.pkg"),
    ],
    ids=" ".join,
)
def test_the_program_sees_what_it_would_see(folder, words):
    plain = python(folder, *words, stdin="typed\n")
    profiled = tensorlens(folder, "run", *words, stdin="typed\n")
    profiled.stderr = profiled.stderr.replace("to stderrtensorlens", "to stderr\ntensorlens")
    same(plain, profiled)
    assert '"same": true' in plain.stdout


OWN = ("raise", "interrupt", "terminate", "hook", "hook-exits")
"""What ends as the interpreter makes it end."""


@pytest.mark.parametrize("how", [*OWN, *"cause context group arguments number text none".split()])
def test_run_ends_as_the_program_does(folder, how):
    plain = python(folder, "fail.py", how)
    run = fresh_tensorlens if how in OWN else tensorlens
    profiled = run(folder, "run", "-o", "out.json", "fail.py", how)
    same(plain, profiled)
    if how == "interrupt":
        assert plain.returncode == -signal.SIGINT
    if how == "terminate":
        assert plain.returncode == -signal.SIGTERM
    assert (folder / "out.json").exists()


def test_a_syntax_error_reads_as_python_prints_it(folder):
    (folder / "bad.py").write_text("def f(:\n    pass\n")
    (folder / "imports.py").write_text("import bad\n")
    for script in ("bad.py", "imports.py"):
        plain = python(folder, script)
        assert "SyntaxError" in plain.stderr
        same(plain, tensorlens(folder, "run", script))
        same(plain, tensorlens(folder, "run", "-p", "bad.py", script))


def test_a_decorator_that_cannot_be_gets_the_users_line_and_the_reason(folder):
    (folder / "odd.py").write_text("import tensorlens\n@tensorlens.profile\nclass Net: pass\n")
    done = tensorlens(folder, "run", "odd.py")
    assert done.returncode == 1
    assert [line.strip() for line in program_lines(done.stderr)] == [
        "Traceback (most recent call last):",
        f'File "{folder}/odd.py", line 2, in <module>',
        "@tensorlens.profile",
        *([] if sys.version_info >= (3, 13) else ["^^^^^^^^^^^^^^^^^^"]),
        "tensorlens.errors.ProfileError: cannot profile the class Net: put @profile on its methods",
    ]


WORKERS = """
import multiprocessing, os, sys, tensorlens
class Item:
    def __init__(self, value): self.value = value
@tensorlens.profile
def double(item):
    return Item(item.value * 2)
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print([item.value for item in pool.map(double, [Item(1), Item(2)])])
        pool.close()
        pool.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_find_main_and_report(folder, method):
    (folder / "workers.py").write_text(WORKERS)
    done = fresh_tensorlens(folder, "run", "-o", "out.json", "workers.py", method)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[2, 4]\n")
    assert (folder / "out.json").exists()
    assert done.stdout == "[2, 4]\n"
    (file,) = folder.glob("out.*.json")
    _, pid, _ = file.name.split(".")
    assert f"wrote {file.name}" in done.stderr
    (function,) = load(file).functions
    assert (function.name, function.calls) == ("double", 2)
    assert load(file).process.startswith(f"process {pid} (")


def test_workers_print_where_there_is_no_file(folder):
    (folder / "workers.py").write_text(WORKERS)
    done = fresh_tensorlens(folder, "run", "workers.py", "spawn")
    assert done.returncode == 0, done.stderr
    assert "Memory per line, process " in done.stdout
    assert not list(folder.glob("*.json"))


def test_switched_off_decorators_are_on_and_stay_off_elsewhere(folder):
    script = "import os, tensorlens\n@tensorlens.profile\ndef f():\n    return 1\nf()\n"
    (folder / "off.py").write_text(script)
    assert python(folder, "off.py", TENSORLENS="0").stdout == ""
    done = tensorlens(folder, "run", "off.py", TENSORLENS="0")
    assert "f  " in done.stdout and "1 call" in done.stdout
    (folder / "pyproject.toml").write_text("[tool.tensorlens]\nenabled = false\n")
    assert "1 call" in tensorlens(folder, "run", "off.py").stdout


def test_own_messages_leave_standard_output_alone(folder):
    done = tensorlens(folder, "run", "look.py")
    assert done.stdout.count("\n") == 1
    [line] = own_lines(done.stderr.replace("to stderr", "to stderr\n"))
    assert line == (
        "tensorlens: nothing was profiled: the program never imported torch or tensorflow"
    )
