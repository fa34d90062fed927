"""The server for coding assistants, asked by the protocol's own client."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

mcp = pytest.importorskip("mcp")
pytest.importorskip("mcp.server.mcpserver")

import tensorlens  # noqa: E402
from tensorlens.integrations.mcp import MOST_CHARACTERS, server, show  # noqa: E402
from tests import warm  # noqa: E402

ROOT = Path(__file__).parents[2]


async def _asked(folder, questions):
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "tensorlens", "mcp"],
        cwd=str(folder),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    async with mcp.stdio_client(parameters) as (reading, writing):
        async with mcp.ClientSession(reading, writing) as session:
            await session.initialize()
            tools = [tool.name for tool in (await session.list_tools()).tools]
            answers = [await session.call_tool(name, given) for name, given in questions]
    return tools, answers


def asked(folder, *questions):
    return asyncio.run(_asked(folder, questions))


def test_an_assistant_finds_the_tensors_of_a_peak_and_what_grew(tmp_path):
    layer = torch.nn.Linear(512, 512, bias=False)
    with tensorlens.record(layer) as recording:
        kept = torch.zeros(1 << 20)
    recording.save(tmp_path / "run.tlens")
    before = tensorlens.MemReporter(model=layer).snapshot()
    more = torch.ones(1 << 18)
    after = tensorlens.MemReporter(model=layer).snapshot()
    before.save(tmp_path / "run.rank0.json")
    after.save(tmp_path / "run.rank1.json")
    files = ["run.rank0.json", "run.rank1.json"]
    tools, answers = asked(
        tmp_path,
        ("show", {"file": "run.tlens", "top": 3, "device": "cpu"}),
        ("diff", {"before": files[0], "after": files[1]}),
        ("ranks", {"files": files}),
        ("show", {"file": "none.tlens"}),
    )
    assert tools == ["show", "diff", "ranks", "job"]
    peak, change, ranks, failed = (answer.content[0].text for answer in answers)
    assert "kept" in peak and "4.00 MiB" in peak
    assert "more" in change and "+1.00 MiB" in change
    assert "rank 1 has 1.00 MiB more allocated than rank 0" in ranks
    assert answers[3].is_error and "there is no file none.tlens" in failed
    assert len(kept) and len(more)


JOB = """
import os, sys
import tensorlens, torch
kept = torch.zeros(1 << 18)
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def test_an_assistant_looks_at_a_training_that_runs(monkeypatch):
    # an address of a Unix socket is short
    with tempfile.TemporaryDirectory(prefix="mcp-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("TENSORLENS_LIVE", "1")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        running = subprocess.Popen(
            [*warm.python(), "-c", JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        monkeypatch.delenv("TENSORLENS_LIVE")
        try:
            pid = int(running.stdout.readline())
            _, (answer, none) = asked(
                folder, ("job", {"pid": pid, "seconds": 0}), ("job", {"pid": 1})
            )
        finally:
            running.communicate()
    text = answer.content[0].text
    assert not answer.is_error, text
    assert "kept" in text and "1.00 MiB" in text
    assert none.is_error and "process 1" in none.content[0].text


def test_an_assistant_gets_to_the_line_of_a_leak(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "weight = torch.nn.Parameter(torch.ones(10))\n"
        "optimizer = torch.optim.SGD([weight], 0.1)\n"
        "kept = []\n"
        "for _ in range(8):\n"
        "    weight.sum().backward()\n"
        "    kept.append(torch.zeros(250))\n"
        "    optimizer.step()\n"
    )
    given = re.findall(r"`(tensorlens leaks [^`]*)`", server().instructions)
    (command,) = (shlex.split(each)[1:] for each in given)
    subprocess.run(
        [*warm.python(), "-m", "tensorlens", *command], cwd=tmp_path, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    text = show(str(tmp_path / command[command.index("-o") + 1]))
    assert "train.py:7" in text and "kept.append(torch.zeros(250))" in text and "1000 B" in text


def test_answers_are_bounded(tmp_path):
    kept = {f"tensor {number}": torch.zeros(number + 1) for number in range(2000)}
    tensorlens.MemReporter(kept=kept).snapshot().save(tmp_path / "many.json")
    text = show(str(tmp_path / "many.json"), top=5000)
    assert len(text) < MOST_CHARACTERS + 200
    assert text.splitlines()[-1].endswith("more characters: ask for fewer rows, or one device")
