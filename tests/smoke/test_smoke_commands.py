"""Each verb of the command line, once, on whichever torch there is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tensorlens  # noqa: E402
from tensorlens.cli import doctor, main  # noqa: E402
from tests import warm  # noqa: E402
from tests.smoke import programs  # noqa: E402
from tests.smoke.programs import ROW  # noqa: E402

HERE = Path(programs.__file__)
MAKE_STEP = f"{HERE}:make_step"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(programs.SCRIPT)
    return tmp_path


def tensorlens_command(*words):
    """Run the command in an interpreter that has torch imported already."""
    launcher = "import sys; from tensorlens.cli import main; sys.exit(main())"
    command = [*warm.python(), "-c", launcher, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def snapshot(name, *more):
    net = programs.Net()
    tensorlens.MemReporter(net, **dict(more)).snapshot().save(name)


def test_run_profiles_and_records_and_show_prints_both(capsys):
    tensorlens_command(
        "run", "-p", "train.py", "-o", "run.json", "--record", "run.tlens", "train.py"
    )
    report = tensorlens.load("run.json")
    (lines,) = (each.lines for each in report.functions if each.name == "step")
    nets = [line.memory["cpu"].net for line in lines if "row" in line.source and line.hits]
    assert nets[0] == 8 * ROW
    assert tensorlens.load("run.tlens").peak("cpu").bytes >= 9 * ROW
    for name in ("run.json", "run.tlens"):
        assert main(["show", name]) == 0
        assert "torch CPU allocator" in capsys.readouterr().out


def test_run_in_an_interpreter_of_its_own_prints_its_tables():
    command = [sys.executable, "-m", "tensorlens", "run", "-p", "train.py", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert any("+32.00 KiB" in each for each in done.stdout.splitlines() if "row + 1" in each)


def test_diff_and_merge(capsys):
    net = programs.Net()
    reporter = tensorlens.MemReporter(net)
    Path("before.json").write_text(reporter.snapshot().to_json())
    net.more = torch.zeros(1024)
    Path("after.json").write_text(reporter.snapshot().to_json())
    assert main(["diff", "before.json", "after.json"]) == 0
    assert "+4.00 KiB" in capsys.readouterr().out
    assert main(["merge", "a=before.json", "b=after.json", "-o", "merged.json"]) == 0
    assert {"a/cpu", "b/cpu"} <= set(tensorlens.load("merged.json").ledger)


def test_convert(capsys):
    with tensorlens.record() as recording:
        torch.zeros(1024)
    recording.save("run.tlens")
    for ending in ("perfetto.json", "pickle", "speedscope.json", "html", "csv", "folded"):
        assert main(["convert", "run.tlens", "-o", f"run.{ending}"]) == 0
        assert Path(f"run.{ending}").stat().st_size > 0


def test_leaks():
    out = tensorlens_command("leaks", "--step", "step", "-o", "leaks.json", "train.py")
    assert out == ""
    (leak,) = json.loads(Path("leaks.json").read_text())["leaks"]
    assert (leak["tensors_per_step"], leak["bytes_per_step"]) == (1, ROW)


def test_estimate(warm_interpreters, capsys):
    program = f"{HERE}:make_forward"
    assert main(["estimate", program, "--device", "cpu", "-o", "estimate.json"]) == 0
    forward = programs.PARAMETERS + programs.DATA + 2 * programs.HIDDEN_BYTES
    allocated = json.loads(Path("estimate.json").read_text())["allocated"]
    assert allocated == {"low": forward, "point": forward, "high": forward}
    assert main(["estimate", program, "--card", "t4", "--capacity", "8 GiB"]) == 0
    assert "Tesla T4" in capsys.readouterr().out


def test_compare(warm_interpreters, capsys):
    options = ["--option", "baseline", "--option", "adam", "optimizer=adam"]
    assert main(["compare", MAKE_STEP, *options, "--repeats", "1", "--steps", "1"]) == 0
    assert "adam" in capsys.readouterr().out


def test_suggest(warm_interpreters, capsys):
    assert main(["suggest", MAKE_STEP, "--top", "1"]) == 0
    assert "SGD without momentum" in capsys.readouterr().out


def test_doctor_finds_everything_native(monkeypatch, capsys):
    # it takes seconds, and is asked in tests/cli
    monkeypatch.setattr(doctor, "_FRAMEWORKS", ("torch",))
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    native = {
        each["name"]: each["ok"]
        for each in findings
        if each["part_of"] == "torch" and each["name"] in ("native counter", "snapshots", "births")
    }
    assert native == {"native counter": True, "snapshots": True, "births": True}
