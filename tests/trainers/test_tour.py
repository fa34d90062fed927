"""The notebook of the docs runs from its first cell to its last, and shows what it says."""

import json
from pathlib import Path

import pytest

from tests import warm

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

WARM = """\
from tensorlens.planning import processes
processes.interpreter = lambda: {}
"""
"""Trials of a cell import torch in no time."""
ROOT = Path(__file__).parents[2]
ANSWERS = (
    "Memory per line",
    "Tensors in memory",
    "Memory over time",
    "stay behind in each step: 1 tensor (4 B)",
    "Estimate for cuda:0",
    "Biggest savings",
)


def test_every_cell_runs_and_answers_its_question(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    python = warm.python(device=True)
    kernel = tmp_path / "kernels" / "warm" / "kernel.json"
    kernel.parent.mkdir(parents=True)
    argv = [*python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": argv, "display_name": "warm", "language": "python"}))
    notebook = nbformat.read(ROOT / "docs" / "tour.ipynb", 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    notebook.cells.insert(0, nbformat.v4.new_code_cell(WARM.format(python)))
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="warm")
    client.execute()
    # on a slow machine there are streams beside the answers: the progress of estimates
    outputs = (each for cell in cells for each in cell.outputs if each.output_type != "stream")
    shown = [output.data["text/plain"] for output in outputs]
    for text, answer in zip(shown, ANSWERS, strict=True):
        assert answer in text
        # a line of a cell is told by the cell
        assert "ipykernel" not in text
