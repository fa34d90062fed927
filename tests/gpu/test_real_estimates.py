"""Estimates against the allocator of a CUDA build: the same programs, simulated and run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("no device like the card that is estimated here", allow_module_level=True)

import tensorlens  # noqa: E402

PROGRAMS = Path(__file__).with_name("training_programs.py")
RUN = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import training_programs
step = getattr(training_programs, sys.argv[2])()
for _ in range(3):
    step()
    torch.cuda.synchronize()
print(json.dumps([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()]))
"""


@pytest.mark.parametrize(
    "name", ["perceptron", "small_layers", "transformer", "transformer_in_bfloat16", "lstm"]
)
def test_the_peak_is_the_allocators(name):
    ran = subprocess.run(
        [sys.executable, "-c", RUN, str(PROGRAMS.parent), name],
        check=True,
        capture_output=True,
        text=True,
    )
    estimate = tensorlens.estimate(f"{PROGRAMS}:{name}", card="h100", steps=3)
    assert [estimate.peak_allocated, estimate.peak_reserved] == json.loads(ran.stdout)
