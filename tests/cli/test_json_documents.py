"""``--json`` prints one document and nothing else; ``--no-source`` leaves lines of code out."""

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from commands import fresh_tensorlens, own_lines, python, tensorlens, warm_tensorlens

from tensorlens import config, render
from tensorlens.cli import VERBS, main
from tensorlens.render import shown
from tests.json_page import Checker

MARK = "not-to-be-told-7f3a"
PROGRAM = f"""
import subprocess, sys, tensorlens, torch

kept = []

def grow():
    kept.append(torch.ones(1024, 256))  # {MARK}

def make_step(rows=64, fails=False):
    assert not fails  # {MARK}
    model = torch.nn.Linear(32, 16, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = torch.ones(rows, 32)
    def step():
        optimizer.zero_grad()
        model(torch.stack(  # {MARK}
            [*data])).sum().backward()
        optimizer.step()
    return step

if __name__ == "__main__":
    print("the program's own words", flush=True)
    subprocess.run([sys.executable, "-c", "print('words of its child')"])
    step = make_step()
    for _ in range(6):
        step()
        grow()
    if "fail" in sys.argv:
        raise SystemExit(7)
    with open("snapshot.json", "w") as file:
        file.write(tensorlens.MemReporter(named={{"kept": kept}}).snapshot().to_json())
"""
MIB = 1 << 20


def line_bytes(lines: Sequence[Any]) -> int:
    """The bytes of the line that makes the tensors that are kept."""
    (found,) = (each["nbytes"] for each in lines if each["line"]["function"] == "grow")
    return int(found)


def net_of_grow(document: Any) -> int:
    (grow,) = (each for each in document["functions"] if each["name"] == "grow")
    return sum(line["memory"]["cpu"]["net"] for line in grow["lines"] if line["memory"])


def storage_of_kept(tensors: Any) -> int:
    columns = zip(tensors["alias"], tensors["storage_nbytes"], strict=True)
    return sum(nbytes for alias, nbytes in columns if alias < 0 and nbytes == MIB)


COMMANDS: dict[str, tuple[tuple[str, ...], str, Callable[[Any], object], object]] = {
    "run": (("run", "-p", "train.py", "train.py"), "lines", net_of_grow, 6 * MIB),
    "leaks": (
        ("leaks", "train.py"),
        "leaks",
        lambda found: found["leaks"][0]["bytes_per_step"],
        MIB,
    ),
    "estimate": (
        ("estimate", "train.py:make_step", "--card", "a100"),
        "estimate",
        lambda found: found["by_role"]["parameter"],
        32 * 16 * 4,
    ),
    "cards": (
        ("estimate", "train.py:make_step", "--card", "a100", "--card", "l4", "--no-source"),
        "estimates",
        lambda found: [each["by_role"]["parameter"] for each in found["estimates"]],
        [32 * 16 * 4] * 2,
    ),
    "compare": (
        ("compare", "train.py:make_step", "--option", "fails", "fails=True", "--repeats", "1"),
        "comparison",
        lambda found: found["outcomes"][0]["setup_allocated"],
        (32 * 16 + 64 * 32) * 4,
    ),
    "suggest": (
        ("suggest", "train.py:make_step"),
        "suggestions",
        lambda found: [each["predicted_saving"] for each in found["suggestions"]][:1],
        [32 * 16 * 4],
    ),
    "plan": (
        ("plan", "32x32x3", "--batch", "8"),
        "plan",
        lambda found: found["nbytes"][found["batch_sizes"].index(8)][2],
        8 * 32 * 32 * 3 * 4,
    ),
    "show": (
        ("show", "run.tlens"),
        "recording_summary",
        lambda found: line_bytes(found["devices"]["cpu"]["peak"]["by_line"]),
        6 * MIB,
    ),
    "diff": (
        ("diff", "snapshot.json", "snapshot.json"),
        "difference",
        lambda found: (found["appeared"], found["gone"], found["grown"]),
        (0, 0, 0),
    ),
    "merge": (
        ("merge", "a=snapshot.json", "b=snapshot.json"),
        "snapshot",
        lambda found: storage_of_kept(found["tensors"]),
        2 * 6 * MIB,
    ),
    "ranks": (
        ("merge", "--ranks", "rank0.json", "rank1.json"),
        "job",
        lambda found: found["odd"],
        None,
    ),
}
WITHOUT_FILE = ("cards",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("documents")
    (made / "train.py").write_text(PROGRAM)
    done = warm_tensorlens(made, "run", "--record", "run.tlens", "train.py")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        (made / f"rank{rank}.json").write_bytes((made / "snapshot.json").read_bytes())
    return made


@pytest.fixture(scope="module")
def printed(folder: Path) -> Callable[[str], Any]:
    """Runs a command once, with a file beside its document."""

    @cache
    def run(name: str) -> Any:
        (verb, *words), *_ = COMMANDS[name]
        output = () if name in WITHOUT_FILE else ("-o", f"{name}.json")
        return warm_tensorlens(folder, verb, "--json", *output, *words)

    return run


def document(done: Any) -> Any:
    """The document that was printed, checked against the page."""
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    checker = Checker()
    several = found["schema"] == "tensorlens.estimates"
    for each in found["estimates"] if several else [found]:
        checker.check(each)
    return found


def test_every_verb_that_prints_is_here() -> None:
    # convert prints nothing, mcp speaks JSON anyway, and top needs a job that runs: test_top.py;
    # doctor takes seconds: test_doctor.py
    others = {"convert", "mcp", "top", "doctor"}
    assert {words[0] for words, *_ in COMMANDS.values()} == {*VERBS} - others


@pytest.mark.parametrize("name", COMMANDS)
def test_prints_one_document_as_documented(
    folder: Path, printed: Callable[[str], Any], name: str
) -> None:
    (verb, *_), schema, figure, expected = COMMANDS[name]
    done = printed(name)
    found = document(done)
    assert done.returncode == 0
    assert (found["schema"], found["version"]) == (f"tensorlens.{schema}", 1)
    assert figure(found) == expected
    if name not in WITHOUT_FILE:
        assert json.loads((folder / f"{name}.json").read_text()) == found
    if verb in ("run", "leaks"):
        assert "the program's own words\nwords of its child\n" in done.stderr


@pytest.mark.parametrize("verb", ["run", "leaks"])
def test_a_program_that_fails_keeps_its_code_and_the_document(folder: Path, verb: str) -> None:
    done = warm_tensorlens(folder, verb, "--json", "train.py", "fail")
    assert done.returncode == 7
    assert document(done)["schema"].startswith("tensorlens.")


@pytest.mark.parametrize("verb", ["run", "leaks"])
def test_a_program_without_figures_has_an_empty_document(tmp_path: Path, verb: str) -> None:
    (tmp_path / "nothing.py").write_text("print('nothing')\n")
    done = tensorlens(tmp_path, verb, "--json", "nothing.py")
    found = document(done)
    assert done.returncode == 0
    assert found["functions" if verb == "run" else "leaks"] == []
    (line,) = own_lines(done.stderr)
    assert verb == "run" or line == f"tensorlens: {found['verdict']}"


@pytest.mark.parametrize("verb", ["run", "leaks"])
def test_a_program_that_closes_all_descriptors_keeps_its_files(tmp_path: Path, verb: str) -> None:
    (tmp_path / "daemon.py").write_text(
        "import os, sys\n"
        "os.closerange(3, 256)\n"
        "files = [os.open(f'{number}.txt', os.O_WRONLY | os.O_CREAT) for number in range(64)]\n"
        "sys.exit(7)\n"
    )
    done = fresh_tensorlens(tmp_path, verb, "--json", "daemon.py")
    assert (done.returncode, done.stdout) == (7, "")
    assert [each.stat().st_size for each in tmp_path.glob("*.txt")] == [0] * 64
    (line,) = (each for each in own_lines(done.stderr) if "error" in each)
    assert line == (
        "tensorlens: error: the document is lost: the program closed the descriptor kept for it"
    )


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, ("show", "absent.json")),
        (1, ("merge", "absent.json", "run.tlens")),
        (1, ("diff", "run.tlens", "run.tlens")),
        (2, ("plan", "axb")),
        (2, ("leaks", "--warmup", "0", "train.py")),
        (2, ("run", "-o", "x.what", "train.py")),
        (2, ("estimate", "--explain", "train.py:make_step")),
        (2, ("estimate", "train.py:absent")),
        (1, ("plan", "-o", "absent/x.json", "8x8")),
    ],
)
def test_an_error_is_one_line_and_no_document(
    folder: Path, code: int, words: Sequence[str]
) -> None:
    done = tensorlens(folder, words[0], "--json", *words[1:])
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("tensorlens: error: ") and done.stderr.count("\n") == 1


def content(path: Path) -> str:
    """All that a file holds, with what is packed in it."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    if path.suffix == ".json":
        read = json.loads(data)
        for each in [read, *read.get("estimates", ())]:
            data += gzip.decompress(base64.b64decode(each.get("log", "")))
    return data.decode("latin-1")


@pytest.mark.parametrize("name", ["run", "leaks", "cards"])
def test_no_source_is_printed_or_written(
    folder: Path, printed: Callable[[str], Any], tmp_path: Path, name: str
) -> None:
    (verb, *words), _, figure, expected = COMMANDS[name]
    if name == "cards":
        done = printed(name)
    else:
        output = ("--no-source", "--json", "-o", str(tmp_path / "x.html"))
        done = warm_tensorlens(folder, verb, *output, *words)
    assert figure(document(done)) == expected
    (tmp_path / "printed.json").write_text(done.stdout)
    assert not [file for file in tmp_path.iterdir() if MARK in content(file)]


def test_a_recording_is_written_without_source(folder: Path) -> None:
    done = warm_tensorlens(
        folder, "run", "-p", "train.py", "--no-source", "--record", "clean.tlens", "train.py"
    )
    assert "Memory per line" in done.stdout and MARK not in done.stdout + done.stderr
    assert "grow" in content(folder / "clean.tlens") and MARK not in content(folder / "clean.tlens")


@pytest.mark.parametrize("name", ["run", "leaks", "estimate", "compare", "suggest", "run.tlens"])
def test_files_with_source_lines_say_so_and_are_cleaned(
    folder: Path, printed: Callable[[str], Any], main_in: Callable[..., str], name: str
) -> None:
    file = name
    if name in COMMANDS:
        printed(name)
        file = f"{name}.json"
    recorded = name in ("run.tlens", "estimate")
    for ending in (*render.ENDINGS, *(render.RECORDING_ENDINGS if recorded else ())):
        dirty, clean = folder / f"dirty.{ending}", folder / f"clean.{ending}"
        main_in("convert", file, "-f", "-o", str(dirty))
        main_in("convert", file, "-f", "-o", str(clean), "--no-source")
        assert MARK not in content(clean), clean
        if ending in ("html", "txt"):
            notes = [shown.NOTICE in " ".join(content(each).split()) for each in (dirty, clean)]
            # the page of a comparison has no tracebacks
            assert notes == [MARK in content(dirty), False] == [name != "compare", False]
        if ending == "json":
            both = [json.loads(each.read_text()) for each in (dirty, clean)]
            assert [each["contains_source"] for each in both] == [True, False]
            assert MARK in content(dirty)
    assert MARK not in main_in("show", file, "--no-source")


@pytest.fixture
def main_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., str]]:
    monkeypatch.chdir(folder)

    def run(*words: str) -> str:
        monkeypatch.setenv("TENSORLENS_SOURCE", "1")
        config.current.cache_clear()
        assert main(words) == 0
        return capsys.readouterr().out

    yield run
    monkeypatch.undo()
    config.current.cache_clear()


def test_the_setting_holds_for_what_python_saves(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.tensorlens]\nsource = false\n")
    code = """
from tensorlens.lines import FunctionLines, Line
from tensorlens import LineReport
lines = (Line(1, "x = 1  # secret", 1),)
report = LineReport((FunctionLines("f", "f", "m", "m.py", 1, 1, lines),), ())
print(report, report.to_json(), report.to_csv(), report.to_html())
report.save("x.txt")
print(open("x.txt").read())
"""
    (tmp_path / "made.py").write_text(code)
    done = python(tmp_path, "made.py")
    assert done.returncode == 0, done.stderr
    assert "m.py" in done.stdout and "secret" not in done.stdout


def test_workers_and_later_ranks_print_no_document(tmp_path: Path) -> None:
    (tmp_path / "workers.py").write_text(
        "import multiprocessing, tensorlens, torch\n"
        "@tensorlens.profile\n"
        "def work(n):\n    return torch.ones(n)\n"
        "if __name__ == '__main__':\n"
        "    work(10)\n"
        "    child = multiprocessing.get_context('fork').Process(target=work, args=(20,))\n"
        "    child.start()\n    child.join()\n"
    )
    done = warm_tensorlens(tmp_path, "run", "--json", "workers.py")
    (work,) = document(done)["functions"]
    assert (work["calls"], work["lines"][-1]["memory"]["cpu"]["peak"]) == (1, 40)
    assert "Memory per line, process " in done.stderr and "80 B" in done.stderr
    later = warm_tensorlens(tmp_path, "run", "--json", "workers.py", RANK="1", WORLD_SIZE="2")
    assert (later.returncode, later.stdout) == (0, "")
