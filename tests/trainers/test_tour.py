"""The notebook of the docs runs from its first cell to its last, and shows what it says."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[2]
ANSWERS = (
    "Memory per line",
    "Tensors in memory",
    "Memory over time",
    "stay behind in each step: 1 tensor (4 B)",
    "Estimate for cuda:0",
    "Biggest savings",
)


def test_every_cell_runs_and_answers_its_question(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "docs" / "tour.ipynb", 4)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.data["text/plain"] for cell in cells for output in cell.outputs]
    for text, answer in zip(shown, ANSWERS, strict=True):
        assert answer in text
        # a line of a cell is told by the cell
        assert "ipykernel" not in text
