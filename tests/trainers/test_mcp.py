"""The server for coding assistants, asked by the protocol's own client."""

import asyncio
import contextlib
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
from tensorlens.live import server as live_server  # noqa: E402

ROOT = Path(__file__).parents[2]


FILES = ["run.rank0.json", "run.rank1.json"]
QUESTIONS = {
    "peak": ("show", {"file": "run.tlens", "top": 3, "device": "cpu"}),
    "change": ("diff", {"before": FILES[0], "after": FILES[1]}),
    "ranks": ("ranks", {"files": FILES}),
    "no file": ("show", {"file": "none.tlens"}),
    "no job": ("job", {"pid": 1}),
}


async def asked(folder, questions):
    """Return the names of the server's tools, and what it says to each question."""
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "tensorlens", "mcp"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    async with mcp.stdio_client(parameters) as (reading, writing):
        async with mcp.ClientSession(reading, writing) as session:
            await session.initialize()
            tools = [tool.name for tool in (await session.list_tools()).tools]
            return tools, {name: await session.call_tool(*each) for name, each in questions.items()}


def save_files(folder):
    layer = torch.nn.Linear(512, 512, bias=False)
    with tensorlens.record(layer) as recording:
        kept = torch.zeros(1 << 20)
    recording.save(folder / "run.tlens")
    tensorlens.MemReporter(model=layer).snapshot().save(folder / FILES[0])
    more = torch.ones(1 << 18)
    tensorlens.MemReporter(model=layer).snapshot().save(folder / FILES[1])
    assert len(kept) and len(more)


@pytest.fixture(scope="module")
def said():
    """Tools, and answers about files and about a job, which is this process."""
    # an address of a Unix socket is short
    with (
        tempfile.TemporaryDirectory(prefix="mcp-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        save_files(Path(folder))
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        with contextlib.closing(live_server.server()) as live:
            live.start(follows_steps=False)
            kept = torch.zeros(1 << 18)
            job = ("job", {"pid": os.getpid(), "seconds": 0})
            answers = asyncio.run(asked(folder, {**QUESTIONS, "job": job}))
        assert len(kept)
        return answers


def test_an_assistant_finds_the_tensors_of_a_peak_and_what_grew(said):
    tools, answers = said
    assert tools == ["show", "diff", "ranks", "job"]
    peak, change, ranks = (answers[name].content[0].text for name in ("peak", "change", "ranks"))
    assert "kept" in peak and "4.00 MiB" in peak
    assert "more" in change and "+1.00 MiB" in change
    assert "rank 1 has 1.00 MiB more allocated than rank 0" in ranks


def test_an_assistant_looks_at_a_training_that_runs(said):
    answer = said[1]["job"]
    text = answer.content[0].text
    assert not answer.is_error, text
    assert "kept" in text and "1.00 MiB" in text


@pytest.mark.parametrize(
    ("question", "words"),
    [("no file", "there is no file none.tlens"), ("no job", "process 1")],
)
def test_unknown_request_names_what_is_missing(said, question, words):
    answer = said[1][question]
    assert answer.is_error and words in answer.content[0].text


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
        [sys.executable, "-m", "tensorlens", *command], cwd=tmp_path, check=True,
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
