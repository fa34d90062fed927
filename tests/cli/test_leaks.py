"""``tensorlens leaks``: a program's loop judged while it runs."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from commands import environment, own_lines, program_lines
from commands import tensorlens as tensorlens_without_torch
from commands import warm_tensorlens as tensorlens

from tensorlens import LeakReport, load
from tensorlens.cli import main
from tensorlens.leaks import LoopJudge
from tests import warm

LOOP = """
import sys
import torch

KEPT = []

def main(steps):
    net = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    for step in range(steps):
        train(net, optimizer)
        other.step()
        print("step", step)
    KEPT.clear()
    return step

def train(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    KEPT.append(torch.zeros(256))

def apart(steps):
    for step in range(steps):
        piece()

def piece():
    KEPT.append(torch.zeros(256))

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""

HEALTHY = LOOP.replace("KEPT.append(torch.zeros(256))", "torch.zeros(256)")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loop.py").write_text(LOOP)
    (tmp_path / "healthy.py").write_text(HEALTHY)
    return tmp_path


@pytest.fixture
def torch() -> None:
    # the folder of tests for torch may be on the path by that name
    pytest.importorskip("torch.nn")


def report_of(folder: Path, *arguments: str) -> LeakReport:
    made = tensorlens(folder, "leaks", "-o", "leaks.json", "-f", *arguments)
    assert made.returncode == 0, made.stderr
    report = load(folder / "leaks.json")
    assert isinstance(report, LeakReport)
    return report


def the_leak(report: LeakReport) -> tuple[int, float, float]:
    (leak,) = report.leaks
    assert leak.path.removeprefix("loop.").startswith("KEPT (global) -> list[")
    return leak.born.lineno, leak.tensors_per_step, leak.bytes_per_step


@pytest.mark.usefixtures("torch")
def test_the_loop_is_judged_before_it_has_ended(folder: Path) -> None:
    # 2 of warm-up; judged after 3 more, 6 more and 12 more
    report = report_of(folder, "loop.py", "20")
    assert the_leak(report) == (22, 1.0, 1024.0)
    assert (report.warmup, report.steps) == (2, 12)
    assert report.notes == ("judged after step 14; the program made 20",)
    assert report.leaks[0].source == "KEPT.append(torch.zeros(256))"


@pytest.mark.usefixtures("torch")
def test_it_prints_after_what_the_program_prints_and_tells_what_is_next(folder: Path) -> None:
    made = tensorlens(folder, "leaks", "loop.py", "8")
    # without --fail the exit code is the program's
    assert made.returncode == 0
    lines = made.stdout.splitlines()
    assert lines[:8] == [f"step {step}" for step in range(8)]
    assert lines[8].endswith("leak: 1 tensor and 1.00 KiB stay behind in each step")
    assert "   made at    loop.py:22 in train" in lines
    assert own_lines(made.stderr) == [
        "tensorlens: to keep this report: tensorlens leaks -o loop.json loop.py 8"
    ]
    assert program_lines(made.stderr) == []


@pytest.mark.usefixtures("torch")
def test_an_optimizer_made_anew_in_each_step_counts(folder: Path) -> None:
    (folder / "anew.py").write_text(
        "import torch\n"
        "net = torch.nn.Linear(8, 1)\n"
        "kept = []\n"
        "for step in range(8):\n"
        "    optimizer = torch.optim.Adam(net.parameters())\n"
        "    net(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "    kept.append(optimizer)\n"
    )
    report = report_of(folder, "anew.py")
    assert report.steps == 6
    assert report.leaks


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize("name", ["train", "loop.train"])
def test_a_function_may_end_a_step(folder: Path, name: str) -> None:
    (folder / "entry.py").write_text("import sys, loop\nloop.main(int(sys.argv[1]))\n")
    script = "entry.py" if name == "loop.train" else "loop.py"
    report = report_of(folder, "--step", name, script, "8")
    assert the_leak(report) == (22, 1.0, 1024.0)
    assert (report.warmup, report.steps) == (2, 6)


@pytest.mark.usefixtures("torch")
def test_warm_up_and_steps_can_be_chosen(folder: Path) -> None:
    report = report_of(folder, "--warmup", "4", "--steps", "5", "loop.py", "12")
    assert (report.warmup, report.steps) == (4, 5)
    assert report.notes == ("judged after step 9; the program made 12",)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("script", "ending", "code"),
    [
        ("loop.py", "", 3),
        ("loop.py", "sys.exit(0)", 3),
        ("loop.py", "sys.exit(7)", 7),
        ("loop.py", "import numpy; sys.exit(numpy.array([1, 2]))", 1),
        ("loop.py", "raise ValueError('mine')", 1),
        ("healthy.py", "", 0),
    ],
)
def test_fail_gives_an_exit_code_of_its_own(
    folder: Path, script: str, ending: str, code: int
) -> None:
    with (folder / script).open("a") as file:
        file.write(f"\n{ending}\n")
    made = tensorlens(folder, "leaks", "--fail", script, "8")
    assert made.returncode == code
    assert "leak: 1 tensor" in made.stdout or script == "healthy.py"
    assert "site-packages" not in made.stderr and "tensorlens/" not in made.stderr


@pytest.mark.usefixtures("torch")
@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_signal_ends_the_program_and_what_is_known_is_told(
    folder: Path, number: int, code: int
) -> None:
    (folder / "ends.py").write_text(
        "import os, sys, loop\n"
        "loop.apart(9); os.kill(os.getpid(), int(sys.argv[1])); loop.apart(9)\n"
    )
    launcher = "import sys; from tensorlens.cli import main; sys.exit(main())"
    words = ("leaks", "--step", "loop.piece", "ends.py")
    # an interrupt is about the interpreter's own end
    interpreter = warm.python(ends=number == signal.SIGINT)
    made = subprocess.run(
        [*interpreter, "-c", launcher, *words, str(int(number))],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(),
        timeout=300,
    )
    assert made.returncode == code
    assert "leak: 1 tensor" in made.stdout
    assert "tensorlens/" not in made.stderr


BY_HAND = (
    "name the function that makes one step: "
    "tensorlens leaks --step FUNCTION {}, or call step() of a tensorlens.LeakWatch where a step of "
    "the loop ends, then print its report"
)


@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["loop.py", "0"],
            f"nothing was judged: no optimizer stepped; {BY_HAND.format('loop.py 0')}",
        ),
        (
            ["-o", "x.json", "--step", "apart", "loop.py", "3"],
            "nothing was judged: apart was never called, so x.json was not written",
        ),
    ],
)
def test_why_nothing_was_judged_is_one_line(folder: Path, arguments: list[str], text: str) -> None:
    (folder / "loop.py").write_text(LOOP.replace("return step", "return 0"))
    made = tensorlens(folder, "leaks", *arguments)
    assert own_lines(made.stderr) == [f"tensorlens: {text}"]
    assert not (folder / "x.json").exists()


def test_a_program_without_torch_has_nothing_to_judge(folder: Path) -> None:
    (folder / "plain.py").write_text("print('done')\n")
    made = tensorlens_without_torch(folder, "leaks", "--fail", "plain.py")
    assert (made.returncode, made.stdout) == (0, "done\n")
    why = "nothing was judged: the program never imported torch or tensorflow"
    assert made.stderr == f"tensorlens: {why}\n"


@pytest.mark.usefixtures("torch")
def test_a_saved_report_of_the_first_optimizers_steps_is_shown_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "forks.py").write_text(
        "import os, sys, loop\n"
        "loop.main(8)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    loop.main(3)\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    made = tensorlens(folder, "leaks", "-o", "leaks.json", "forks.py")
    # a worker process does not report
    assert len(own_lines(made.stderr)) == 1
    report = load(folder / "leaks.json")
    # only the first optimizer ends a step
    assert (report.warmup, report.steps, report.notes) == (2, 6, ())
    monkeypatch.chdir(folder)
    assert main(["show", "leaks.json"]) == 0
    assert "\n   made at    loop.py:22 in train\n" in capsys.readouterr().out
    assert main(["show", "leaks.json", "-o", "leaks.html"]) == 0
    assert "KEPT (global)" in (folder / "leaks.html").read_text()
    capsys.readouterr()
    main(["diff", "leaks.json", "leaks.json"])
    assert capsys.readouterr().err == (
        "tensorlens: error: leaks.json: a leak report, not a snapshot\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--warmup", "0", "loop.py"], 2, "--warmup 0: at least 1"),
        (["--steps", "1", "loop.py"], 2, "--steps 1: at least 3"),
        (["-o", "x.tlens", "loop.py"], 2, "a leak report is written as .json, .html, .csv"),
        (["-o", "no/x.json", "loop.py"], 1, "there is no folder"),
        (["--step", "none", "loop.py"], 1, "--step none: no file, module or function"),
        (["--step", "loop", "loop.py"], 2, "--step loop: give a function, as module.function"),
        (["--step", "loop.none", "loop.py"], 1, "--step loop.none: "),
        (["none.py"], 1, "there is no script none.py"),
    ],
)
def test_bad_input_gets_one_line(folder: Path, arguments: list[str], code: int, text: str) -> None:
    made = tensorlens_without_torch(folder, "leaks", *arguments)
    assert (made.returncode, made.stdout) == (code, "")
    assert made.stderr.startswith("tensorlens: error: ") and made.stderr.count("\n") == 1
    assert text in made.stderr


class Watch:
    """Stands for a watch: notes after how many steps it was asked for a verdict."""

    def __init__(self) -> None:
        self.steps = 0
        self.asked: list[int] = []
        self.fails = False

    def step(self) -> None:
        if self.fails:
            raise RuntimeError("broken")
        self.steps += 1

    def result(self) -> LeakReport:
        self.asked.append(self.steps)
        return LeakReport((), (), self.steps - 2, 2, {}, "no leak")

    stop = result


def judge_of(watch: Watch, steps: int = 1000) -> LoopJudge:
    judge = LoopJudge(2, steps)
    judge._watch = watch
    return judge


def test_it_judges_at_doubling_intervals_and_then_no_more() -> None:
    watch = Watch()
    judge = judge_of(watch, steps=40)
    for _ in range(100):
        judge.step_ended()
    assert watch.asked == [5, 8, 14, 26, 42]
    assert (watch.steps, judge.made) == (42, 100)
    assert judge.finish().notes == ("judged after step 42; the program made 100",)


def test_a_short_loop_is_judged_at_the_end() -> None:
    watch = Watch()
    judge = judge_of(watch)
    assert judge.finish() is None
    for _ in range(4):
        judge.step_ended()
    assert watch.asked == []
    assert judge.finish().notes == () and judge.finish() is not None
    assert watch.asked == [4]


def test_a_failure_of_ours_stays_with_us() -> None:
    watch = Watch()
    judge = judge_of(watch)
    judge.step_ended()
    watch.fails = True
    judge.step_ended()
    judge.step_ended()
    assert (judge.refusal, judge.made) == ("RuntimeError: broken", 3)
    assert judge.finish() is None
