"""``tensorlens compare``: what it asks, what it prints, and its exit codes."""

import textwrap
from pathlib import Path

import pytest
from commands import own_lines
from commands import tensorlens as command

from tensorlens import Comparison, load
from tensorlens.cli import main
from tensorlens.planning.compare import Outcome, Status
from tensorlens.planning.compare import api as comparing

MIB = 1 << 20


class Asked:
    """Stands for ``compare()``: keeps what it was asked, and answers with rows made by hand."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.outcomes = [outcome("baseline", 100 * MIB), outcome("adam", 140 * MIB)]
        self.failure: Exception | None = None

    def __call__(self, program, options, **given):
        self.calls.append((program, options, given))
        if self.failure is not None:
            raise self.failure
        return Comparison(
            tuple(self.outcomes),
            self.outcomes[0].name,
            "cpu",
            given["how"],
            program=program,
            capacity=given["capacity"] and 24 << 30,
            steps=3,
            repeats=3,
        )

    @property
    def given(self):
        ((program, options, given),) = self.calls
        return program, options, {name: each for name, each in given.items() if each is not None}


def outcome(name, peak, **more):
    figures = {
        "peak_allocated": peak,
        "peak_reserved": 2 * peak,
        "setup_allocated": peak // 2,
        "least_capacity": peak,
        "peaks": (peak,) * 3,
        "seconds": (0.010, 0.011, 0.009),
        "losses": (1.5, 1.25),
    }
    return Outcome(name, settings=(f"{name}=yes",), **{**figures, **more})


def failure(name, status, why, **more):
    return Outcome(name, status=status, why=why, **more)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    found = Asked()
    monkeypatch.setattr(comparing, "compare", found)
    monkeypatch.chdir(tmp_path)
    return found


def run(*words: str) -> int:
    return main(["compare", *words])


def test_options_become_the_request(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train:make_step", "--framework", "torch", "--baseline", "adam", "--set", "width=8"]
    words += ["--option", "adam", "optimizer=adam,fused=true", "depth=3", "--batch", "32"]
    words += ["--option", "two parts", "accumulate=2", "--capacity", "24GiB", "--highest", "64"]
    words += ["--warmup", "0", "--steps", "5", "--repeats", "2", "--timeout", "1.5"]
    assert run(*words) == 0
    assert asked.given == (
        "train:make_step",
        {
            "adam": {"optimizer": "adam", "fused": True, "arguments": {"depth": 3}},
            "two parts": {"accumulate": 2},
        },
        {
            "how": "measured",
            "baseline": "adam",
            "capacity": "24GiB",
            "batch": 32,
            "highest": 64,
            "warmup": 0,
            "steps": 5,
            "repeats": 2,
            "timeout": 1.5,
            "arguments": {"width": 8},
            "framework": "torch",
        },
    )
    assert capsys.readouterr().err == ""


def test_the_program_may_stand_behind_the_last_option(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    run("--framework", "torch", "--option", "adam", "optimizer=adam", "train:make_step")
    assert asked.given[0] == "train:make_step"
    assert asked.given[1] == {"baseline": {}, "adam": {"optimizer": "adam"}}
    asked.calls.clear()
    for words in ((), ("--option", "adam", "optimizer=adam"), ("--option", "train:make_step")):
        assert run(*words) == 2 and asked.calls == []
        assert "no PROGRAM is given: module:function" in capsys.readouterr().err


def test_a_value_with_commas_and_colons_is_one(asked: Asked) -> None:
    conf = "expandable_segments:True,max_split_size_mb:128"
    run("train:make_step", "--framework", "torch", "--option", "a", f"alloc_conf={conf},fused=True")
    assert asked.given[1] == {"baseline": {}, "a": {"alloc_conf": conf, "fused": True}}


@pytest.mark.parametrize(
    ("options", "baseline"),
    [
        (["adam optimizer=adam", "sgd optimizer=sgd"], "baseline"),
        (["adam optimizer=adam", "plain"], "plain"),
        (["plain", "baseline optimizer=sgd"], None),
    ],
)
def test_unmodified_program_is_the_baseline(
    asked: Asked, options: list[str], baseline: str | None
) -> None:
    words = [word for each in options for word in ("--option", *each.split())]
    run("train:make_step", "--framework", "torch", *words)
    _, found, given = asked.given
    assert given.get("baseline") == (None if baseline == "baseline" else baseline)
    assert next(iter(found)) == ("baseline" if baseline == "baseline" else options[0].split()[0])


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimiser=adam", "'optimiser' is no setting and no argument; did you mean 'optimizer'?"),
        ("deepth=3", "'deepth' is no setting and no argument; did you mean 'depth'?"),
        ("speed=3", "'speed' is no setting and no argument"),
    ],
)
def test_misspelt_setting_is_refused_with_the_nearest(
    asked: Asked, tmp_path: Path, setting: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("import torch\ndef make_step(batch=1, *, depth=2): ...\n")
    assert run("train.py:make_step", "--option", "a", setting) == 2
    assert said in capsys.readouterr().err
    assert asked.calls == []
    assert run("train.py:make_step", "--option", "a", "depth=3") == 0


def test_settings_without_a_name_are_settings_and_no_name(
    asked: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--option", "checkpoint=blocks", "--option", "optimizer=sgd,fused=true"]
    run("train:make_step", "--framework", "torch", *words)
    assert asked.given[1] == {
        "baseline": {},
        "checkpoint=blocks": {"checkpoint": "blocks"},
        "optimizer=sgd,fused=true": {"optimizer": "sgd", "fused": True},
    }
    assert run("train:make_step", "--framework", "torch", "--option", "checkpiont=blocks") == 2
    assert "did you mean 'checkpoint'?" in capsys.readouterr().err


def test_bare_name_of_a_usual_option_is_that_option(asked: Asked) -> None:
    run("train:make_step", "--framework", "torch", "--option", "bf16", "--option", "mine")
    usual = {"bf16": {"autocast": "bf16"}, "mine": {}}
    assert asked.given[1] == usual and asked.given[2]["baseline"] == "mine"
    asked.calls.clear()
    run("train:make_step", "--framework", "torch", "--option", "bf16")
    assert asked.given[1] == {"baseline": {}, "bf16": {"autocast": "bf16"}}


def test_no_option_ran(asked: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    details = "Traceback (most recent call last):\n  ...\nValueError: not today\n"
    asked.outcomes = [failure("a", Status.FAILED, "ValueError: not today", details=details)]
    assert run("train:make_step", "--framework", "torch") == 1
    shown, complaints = capsys.readouterr()
    assert "a: failed: ValueError: not today" in shown
    assert complaints == details


def test_output_files(asked: Asked, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train:make_step", "--framework", "torch", "-o", "found.json", "-o", "found.html"]
    assert run(*words) == 0
    shown, complaints = capsys.readouterr()
    assert shown == ""
    assert complaints.splitlines() == [
        "tensorlens: wrote found.json: least memory: baseline",
        "tensorlens: wrote found.html: least memory: baseline",
    ]
    found = load(tmp_path / "found.json")
    assert isinstance(found, Comparison) and found["adam"].peak_allocated == 140 * MIB
    assert "<html" in (tmp_path / "found.html").read_text(encoding="utf-8")
    assert run(*words) == 2
    assert "found.json" in capsys.readouterr().err
    assert run(*words, "--force") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--option", "a", "optimizer"], "'optimizer': give NAME=VALUE, as in optimizer=adam"),
        (["--option", "a", "--option", "a"], "--option a: there are two of that name"),
        (["--set", "width"], "'width': give NAME=VALUE, as in --set batch=32"),
        (["-o", "found.pdf"], "found.pdf"),
    ],
)
def test_contradictory_options_are_refused(
    asked: Asked, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train:make_step", "--framework", "torch", *words) == 2
    shown, complaints = capsys.readouterr()
    assert shown == "" and asked.calls == []
    (line,) = complaints.splitlines()
    assert line.startswith("tensorlens: error: ") and said in line


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run("--help")
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for name in ("optimizer", "checkpoint", "accumulate", "alloc_conf", "offload"):
        assert f"\n  {name} " in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_a_program_is_compared(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import torch

        def make_step(batch=256, rows=64):
            print("not for the reader")
            weight = torch.zeros(rows, 1024, requires_grad=True)
            optimizer = torch.optim.SGD([weight], lr=0.1)

            def step():
                optimizer.zero_grad()
                loss = weight.sum()
                loss.backward()
                optimizer.step()
                return loss

            return step
        """),
        encoding="utf-8",
    )
    words = ["compare", "train.py:make_step", "--set", "rows=512", "--repeats", "1", "--warmup"]
    words += ["0", "--steps", "2", "--option", "sgd", "--option", "adam", "optimizer=adam"]
    words += ["--option", "channels", "channels_last=True", "-o", "found.json", "-o", "found.txt"]
    done = command(tmp_path, *words)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.splitlines() == own_lines(done.stderr)
    found = load(tmp_path / "found.json")
    weight = 512 * 1024 * 4
    # Adam keeps two of the weight's size, and makes two more in each step: a root and a quotient
    assert found.saved("adam") == pytest.approx(-4 * weight, abs=64)
    assert found["channels"].status == Status.CANNOT
    assert "channels: channels_last" in (tmp_path / "found.txt").read_text(encoding="utf-8")
