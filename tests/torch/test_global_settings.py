"""What a program sets for its whole process holds in the processes of its trials."""

import json

from tests import warm
from tests.cli.commands import python

WIDTH, ROWS = 100, 1000

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
print(json.dumps(report))
"""

HEAD = """import json, torch, tensorlens, library
from tensorlens.planning import processes
processes.interpreter = library.interpreter
"""


def answer(folder, *arguments):
    interpreter = warm.python()
    (folder / "library.py").write_text(f"def interpreter():\n    return {interpreter}\n")
    ended = python(folder, *arguments, interpreter=interpreter)
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_script_that_asks_is_not_run_again(tmp_path):
    (tmp_path / "train.py").write_text(f"""
{HEAD}
open("once", "x").close()
torch.set_default_dtype(torch.float64)
torch.manual_seed(42)
data = torch.ones({ROWS})
{STEP}{ASK}
""")
    found = answer(tmp_path, "train.py")
    assert not found["why"]
    assert found["setup"] == 8 * (WIDTH**2 + ROWS)
    assert found["loss"] == found["here"]


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
