"""``tensorlens run`` points to the lines of a model that a library defines."""

import pytest
from commands import own_lines, warm_tensorlens

LIBRARY = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)

class Scaled(Block):
    pass

def fit(model):
    model(torch.ones(2, 4)).sum().backward()
"""
PROGRAM = """
import torch
import zoo.model
{imports}

def main():
    zoo.model.fit({model})

main()
"""
HINT = "the model's own lines are in zoo.model: tensorlens run"


@pytest.fixture
def library(tmp_path):
    folder = tmp_path / "lib" / "site-packages"
    (folder / "zoo").mkdir(parents=True)
    (folder / "zoo" / "__init__.py").write_text("")
    (folder / "zoo" / "model.py").write_text(LIBRARY)
    return str(folder)


@pytest.mark.parametrize(
    ("imports", "model", "pointed"),
    [
        ("from zoo.model import Block", "Block()", True),
        ("", "LIVE", True),
        ("", "torch.nn.Linear(4, 4)", False),
        (
            "import weakref\ndead = weakref.proxy({1})\nfrom zoo.model import Block",
            "Block()",
            True,
        ),
    ],
    ids=["class in the main module", "live model", "only the framework's layers", "dead proxy"],
)
def test_lines_of_a_library_model_are_pointed_to(library, tmp_path, imports, model, pointed):
    if model == "LIVE":
        imports = "LIVE = zoo.model.Scaled()"
    (tmp_path / "train.py").write_text(PROGRAM.format(imports=imports, model=model))
    done = warm_tensorlens(tmp_path, "run", "-p", "train.py", "train.py", PYTHONPATH=library)
    assert done.returncode == 0, done.stderr
    hints = [line for line in own_lines(done.stderr) if "own lines" in line]
    wanted = [f"tensorlens: {HINT} -p train.py -p zoo.model train.py"] if pointed else []
    assert hints == wanted


def test_lines_that_are_profiled_are_not_pointed_to(library, tmp_path):
    source = PROGRAM.format(imports="from zoo.model import Block", model="Block()")
    (tmp_path / "train.py").write_text(source)
    done = warm_tensorlens(tmp_path, "run", "-p", "zoo.model", "train.py", PYTHONPATH=library)
    assert "return self.inner(x)" in done.stdout
    assert "own lines" not in done.stderr
