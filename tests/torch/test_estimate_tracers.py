"""Libraries that ask whether a tensor is fake: the estimate is of what they do with real ones."""

import pytest

import tensorlens
from tensorlens.planning import processes
from tests import warm

LIBRARY = """\
import torch

def is_fake_tensor(tensor):
    return isinstance(tensor, torch._subclasses.FakeTensor)

def is_tracing(tensor):
    return is_fake_tensor(tensor)
"""
PROGRAM = """\
import torch

def make_step():
    # transformers' masking_utils: a mask is left out where the positions show that none is needed
    from transformers.utils.import_utils import is_tracing

    positions = torch.arange(1024)
    changes = (torch.diff(positions) != 1).cumsum(-1)

    def step():
        if is_tracing(changes) or not (changes[-1:] == 0).all():
            torch.zeros(1 << 20)

    return step
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_mask_that_only_fake_tensors_have_is_not_estimated(tmp_path, monkeypatch, device):
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))
    utils = tmp_path / "transformers" / "utils"
    utils.mkdir(parents=True)
    for file in (utils / "__init__.py", utils.parent / "__init__.py"):
        file.touch()
    (utils / "import_utils.py").write_text(LIBRARY)
    (tmp_path / "program.py").write_text(PROGRAM)
    found = tensorlens.estimate(f"{tmp_path / 'program.py'}:make_step", device=device)
    # positions and changes of 8 KiB each, and what comes between them
    assert found.peak_allocated < 1 << 16
