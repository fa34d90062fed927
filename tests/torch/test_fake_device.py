"""Programs on a CUDA device that is not there: they run, and things are where they should be."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import warm

torch = pytest.importorskip("torch")

PROGRAMS = Path(__file__).with_name("fake_programs.py")
ROOT = Path(__file__).parents[2]
GIB = 2**30
H100 = 85_029_158_912

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="no native parts on Windows"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA of its own"),
]

ON_DEVICE = "cuda:0"

EXPECTED = {
    "linear": [[3, 2], ON_DEVICE, "float32"],
    # 9 pixels, kernel 3, stride 2: (9 - 3) // 2 + 1
    "convolution": [
        [[3, 8, 4, 4], ON_DEVICE, "float32"],
        ["cudnn_batch_norm", "native_dropout"],
    ],
    "channels_last": True,
    "convolutions": [[2, 4, 7], [2, 4, 7, 7, 7], [2, 4, 19, 19], [2, 4, 7, 7], [2, 4, 5, 5]],
    "attention": [[2, 4, 16, 8], [2, 5, 16]],
    # two directions; the weights lie in one buffer
    "lstm": [[[3, 5, 16], ON_DEVICE, "float32"], True, 1],
    "gru_and_rnn": [[[5, 3, 8], [1, 3, 8], True]] * 3,
    # lengths 5, 4, 3 and 1: 13 rows
    "packed_lstm": [[13, 8], [4, 3, 3, 2, 1], [5, 4, 8], [5, 4, 3, 1], [5, 4, 6]],
    "without_cudnn": [
        [[5, 3, 8], [5, 3, 8], [3, 8]],
        [
            "_thnn_fused_gru_cell",
            "_thnn_fused_gru_cell_backward",
            "_thnn_fused_lstm_cell",
            "_thnn_fused_lstm_cell_backward_impl",
        ],
    ],
    "embedding": [[3, 5, 8], [3, 8]],
    "foreach_by_default": True,
    "scaled": [[True, "float16", ON_DEVICE]] * 6,
    "autocast_bf16": ["bfloat16", "bfloat16", "float32"],
    "checkpointed": [[[3, 6], ON_DEVICE]] * 2,
    "pinned": [[False, True], False, True, True, "cpu", ON_DEVICE, "cpu"],
    "loaded": [[True, True], [4, 6], ON_DEVICE, [2, 3]],
    "default_device": [ON_DEVICE, [ON_DEVICE]],
    "in_contexts": [ON_DEVICE, ON_DEVICE, "refused"],
    "data_parallel": [[4, 2], ON_DEVICE],
    "moved_modules": [
        [ON_DEVICE, "cpu", ON_DEVICE, ON_DEVICE],
        [True, True, True],
        "bfloat16",
        ON_DEVICE,
        "bfloat16",
    ],
    "tied_weights": [True, ON_DEVICE],
    "double_backward": [[3], ON_DEVICE],
    "gpt2": [[2, 16, 100], ON_DEVICE, "float32"],
    "llama": [[2, 16, 100], ON_DEVICE, "bfloat16"],
    "card": {
        "available": [True, True, 1],
        "name": "NVIDIA H100 80GB HBM3",
        "capability": [9, 0, 9, 0],
        "multiprocessors": 132,
        "memory": [H100, H100, H100],
        "bf16": True,
        "cudnn": True,
        "accelerator": ["cuda", 1],
        "capturing": False,
    },
    "streams": [True, True, False, "refused", True, 8, [-1, 0]],
    # a seed and an offset, eight bytes each
    "seeds": [3, 4, 1, ON_DEVICE, 1, [16]],
    "memory": [[100, 200, 100, 200, 200, 100, 100], [ON_DEVICE, ON_DEVICE], 1, True],
    "refused": ["a snapshot of the allocator cannot be had from a card that is not there"],
    "losses": [ON_DEVICE, [10, 3, 5]],
    "operators": [[2], [5], [3]],
}


def run(
    *arguments: str, interpreter: Sequence[str] = (sys.executable,), **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*interpreter, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.fixture(scope="module")
def found():
    done = run(str(PROGRAMS), *EXPECTED, "optimizers", interpreter=warm.python(device=True))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", EXPECTED)
def test_programs_on_the_fake_device(found, name):
    if name in ("gpt2", "llama") and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    assert found[name] == {"found": EXPECTED[name]}, found[name].get("failed")


def test_every_optimizer_keeps_its_state_on_the_device(found):
    kept = found["optimizers"].get("found")
    assert kept is not None, found["optimizers"]["failed"]
    assert {"SGD fused", "Adam fused", "AdamW fused", "Adagrad fused", "AdamW foreach"} <= {*kept}
    assert all(devices == [ON_DEVICE] for devices in kept.values())


@pytest.mark.parametrize(
    ("name", "threads"),
    [("t4", 1024), ("rtx 3090", 1536), ("rtx 5090", 1536), ("p40", 2048), ("a100-80gb", 2048)],
)
def test_threads_of_a_multiprocessor(name, threads):
    from tensorlens.planning import find_card
    from tensorlens.planning.torch import Bindings

    found = Bindings(None, find_card(name)).properties(0)
    assert found.max_threads_per_multi_processor == threads


PREPARE = "from tensorlens.planning.torch import prepare; prepare()"


def test_not_ready_once_torch_is_imported():
    done = run("-c", "import torch; " + PREPARE, interpreter=warm.python())
    assert "has to be loaded before torch is imported" in done.stderr


def test_not_ready_without_a_compiler(tmp_path):
    done = run("-c", PREPARE, CXX="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert "cannot run no-such-compiler" in done.stderr


def test_process_with_fake_device_exits_normally():
    program = (
        "from tensorlens.planning.torch import prepare; prepare()\n"
        "import torch\n"
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n"
        "    x = torch.randn(3, device='cuda', requires_grad=True)\n"
        "    torch.cuda.Event().record()\n"
        "    x.sum().backward()\n"
        "print('done')\n"
    )
    done = run("-c", program, interpreter=warm.python(device=True, ends=True))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
