"""What a program sets for its whole process holds in the processes of its trials."""

import json

import pytest

from tests import warm
from tests.cli.commands import python

WIDTH, ROWS = 100, 1000

SET = f"""
torch.set_default_dtype(torch.float64)
torch.manual_seed(42)
torch.set_num_threads(1)
library.SCALE = 3
plain = torch.nn.Linear.forward
def forward(self, x):
    return library.SCALE * plain(self, x)
torch.nn.Linear.forward = forward
data = torch.ones({ROWS})
"""

STEP = f"""
def make_step():
    model = torch.nn.Linear({WIDTH}, {WIDTH}, bias=False)
    def step():
        return model(torch.ones({WIDTH}).to(data.dtype)).sum().detach()
    return step
"""

ASK = """
found = tensorlens.compare(make_step, {"a": {}}, repeats=1, warmup=0, steps=1)["a"]
report = {
    "why": found.why + found.details,
    "setup": found.setup_allocated,
    "loss": (found.losses or [None])[0],
    "here": float(make_step()()),
}
if library.SCALE == 3:
    torch.manual_seed(42)
    report["here"] = float(make_step()())
print(json.dumps(report))
"""

HEAD = """import json, torch, tensorlens, library
from tensorlens.planning import processes
processes.interpreter = library.interpreter
"""


def indented(text):
    return "".join(f"    {line}\n" for line in text.strip().splitlines())


GUARDED = f"{HEAD}{SET}{STEP}if __name__ == '__main__':\n{indented(ASK)}"


def answer(folder, *arguments):
    interpreter = warm.python(fakes=True)
    code = f"SCALE = 1\ndef interpreter():\n    return {interpreter}\n"
    (folder / "library.py").write_text(code)
    ended = python(folder, *arguments, interpreter=interpreter)
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("text", [HEAD + SET + STEP + ASK, GUARDED], ids=["plain", "guarded"])
def test_module_level_of_the_main_script_holds_in_trials(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    found = answer(tmp_path, "train.py")
    assert not found["why"]
    # of double precision; the data of the module level are there once
    assert found["setup"] == 8 * (WIDTH**2 + ROWS)
    assert found["loss"] == found["here"]


def test_module_level_of_python_m_holds_in_trials(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "near.py").write_text("def width():\n    return 0\n")
    (tmp_path / "package" / "train.py").write_text(f"from .near import width\n{GUARDED}")
    found = answer(tmp_path, "-m", "package.train")
    assert not found["why"]
    assert (found["setup"], found["loss"]) == (8 * (WIDTH**2 + ROWS), found["here"])


def test_settings_below_the_guard_hold_in_trials_and_estimates(tmp_path):
    (tmp_path / "train.py").write_text(f"""
{HEAD}{STEP}
if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    data = torch.ones({ROWS})
    found = tensorlens.compare(make_step, {{"a": {{}}}}, repeats=1, warmup=0, steps=1)["a"]
    asked = tensorlens.estimate(make_step, device="cpu", steps=1)
    print(json.dumps([found.setup_allocated, asked.steps[0].allocated]))
""")
    assert answer(tmp_path, "train.py") == [8 * (WIDTH**2 + ROWS)] * 2


def test_main_module_that_fails_in_a_trial_is_the_reason(tmp_path):
    (tmp_path / "train.py").write_text(f"""
{HEAD}
open("once", "x").close()
data = torch.ones(1)
{STEP}{ASK}
""")
    assert "FileExistsError" in answer(tmp_path, "train.py")["why"]
