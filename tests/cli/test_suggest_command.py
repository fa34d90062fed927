"""``tensorlens suggest``: all that it prints, the files it writes, its exit codes."""

import textwrap
from pathlib import Path

import pytest

from tensorlens import Suggestions, load
from tensorlens.cli import main
from tensorlens.planning import processes
from tensorlens.render import text
from tests import warm

PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset


def make_step(rows=64, fails=False):
    weight = torch.zeros(1024, 256, requires_grad=True)
    optimizer = torch.optim.Adam([weight], foreach=False)
    data = TensorDataset(torch.zeros(1, 1024).expand(40 * rows, 1024))
    batches = iter(DataLoader(data, rows, num_workers=2, prefetch_factor=4))

    def step():
        if fails:
            raise ValueError("not today")
        (x,) = next(batches)
        optimizer.zero_grad()
        loss = (x @ weight).sum()
        loss.backward()
        optimizer.step()
        return loss

    return step
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(processes, "interpreter", warm.python)
    return tmp_path


def run(*words: str) -> int:
    return main(["suggest", "train.py:make_step", *words])


PRINTED = """\
Biggest savings for train.py:make_step (cpu)
  peak 6.00 MiB, in the optimizer's step, step 1; each change alone
  line train.py:19, 4.00 MiB (66.6 %): optimizer.step()
  tensor aten::div at train.py:19 x 2, 1.00 MiB (16.7 %), temporary, train.py:19

     change              saves   share  memory       after  cost     method
  ───────────────────────────────────────────────────────────────────────────
  1  SGD              3.94 MiB  65.6 %  peak      2.07 MiB  tuning   replayed
  2  a smaller queue  1.50 MiB  75.0 %  queue   512.00 KiB  waiting  counted

1  # with your model's parameters
   optimizer = torch.optim.SGD(..., lr=0.001)
   the state of Adam
   cost: trains differently: you must re-tune learning rate and schedule

2  from torch.utils.data import DataLoader
   # with what else it is given now
   loader = DataLoader(dataset, num_workers=2, prefetch_factor=1)
   2.00 MiB held ahead at most by DataLoader, 2 workers x prefetch 4: shared
     memory, beside what the process allocates
   cost: the step waits sooner where a batch takes longer than a step

  replayed: the recording, with tensors gone, freed earlier or computed again
  counted: batches that loaders ask for ahead of the step, times the bytes of
    one
"""
"""A weight of 1 MiB, its gradient, two of its size in Adam's state and two more in its step; or the
gradient of 64 x 256 outputs beside weight and gradient. A batch is 256 KiB."""


def test_whole_output(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "output_width", lambda: 80)
    assert run("--steps", "1") == 0
    assert capsys.readouterr() == (PRINTED, "")


def test_a_file_that_shows_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--set", "rows=32", "--top", "1", "--steps", "1", "-o", "found.json"]
    assert run(*words) == 0
    shown, complaints = capsys.readouterr()
    assert shown == "" and complaints.startswith("tensorlens: wrote found.json")
    found = load("found.json")
    assert isinstance(found, Suggestions)
    assert found["optimizer"].option == {"optimizer": "sgd"}
    # six batches of 32 x 1024 float32
    assert found.others == ("a smaller queue (768.00 KiB of shared memory)",)
    assert main(["show", "found.json"]) == 0
    assert capsys.readouterr() == (str(found), "")
    assert run("-o", "found.json") == 2
    assert "found.json exists" in capsys.readouterr().err


def test_a_program_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--set", "fails=true", "--steps", "1") == 1
    shown, complaints = capsys.readouterr()
    assert shown == ""
    *details, last = complaints.splitlines()
    assert last == "tensorlens: error: the program failed: ValueError: not today"
    assert any("train.py" in line for line in details)


def test_a_file_with_a_colon_in_its_name_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run-12:30.tlens").write_bytes(b"nothing")
    assert main(["suggest", "run-12:30.tlens"]) == 1
    assert "module" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--top", "0"], "error: --top 0: how many changes are wanted, at least 1"),
        (["--set", "rows"], "'rows': give NAME=VALUE, as in --set batch=32"),
        (["-o", "found.pdf"], "found.pdf"),
    ],
)
def test_bad_usage_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    shown, complaints = capsys.readouterr()
    assert shown == "" and complaints.count("\n") == 1 and said in complaints
