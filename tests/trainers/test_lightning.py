"""``MemoryCallback`` in the ``Trainer`` of Lightning."""

import csv
from pathlib import Path

import pytest
import torch

lightning = pytest.importorskip("lightning.pytorch")

from alive import alive  # noqa: E402

import tensorlens  # noqa: E402
from tensorlens.integrations.lightning import MemoryCallback  # noqa: E402

WEIGHTS = 64 * 64 * 4


class Net(lightning.LightningModule):
    def __init__(self, fails=False):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64, bias=False)
        self.fails = fails
        self.kept = []

    def training_step(self, batch, batch_idx):
        if self.fails and batch_idx == 2:
            torch.empty(1 << 50, dtype=torch.uint8)
        self.kept.append(torch.zeros(1000))
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def fit(model, folder, callback, logger=False):
    trainer = lightning.Trainer(
        max_epochs=2, default_root_dir=folder, logger=logger, callbacks=[callback],
        log_every_n_steps=2, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(model, torch.utils.data.DataLoader(torch.ones(32, 64), batch_size=4))


def test_loggers_get_memory_by_phase_and_role(tmp_path):
    roles = ("parameter", "gradient", "optimizer")
    others = {role: alive(role) for role in roles}
    logger = lightning.loggers.CSVLogger(tmp_path)
    fit(Net(), tmp_path, MemoryCallback(roles_every=1), logger)
    with Path(logger.log_dir, "metrics.csv").open(encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12, 14, 16]
    for row in rows:
        # two moments, and a step of four bytes
        own = [row[f"memory/{role}_mem"] - others[role] for role in roles]
        assert own == [WEIGHTS, WEIGHTS, 2 * WEIGHTS + 4]
        phases = ("forward", "backward", "optimizer")
        peaks = [row[f"memory/peak_allocated_mem/{phase}"] for phase in phases]
        assert row["memory/peak_allocated_mem"] == max(peaks)


def test_recorded_steps_and_leaks_are_files_of_the_run(tmp_path):
    callback = MemoryCallback(leaks=True, record_steps=(2, 4))
    fit(Net(), tmp_path, callback)
    recording, leaks = map(tensorlens.load, callback.monitor.files)
    assert recording.peak("cpu").bytes > 0
    (leak,) = leaks.leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 4000)


def test_memory_that_runs_out_is_explained(tmp_path):
    callback = MemoryCallback()
    with pytest.raises(RuntimeError, match="allocate"):
        fit(Net(fails=True), tmp_path, callback)
    (report,) = callback.monitor.files
    assert report.parent == tmp_path
    assert "Tried to allocate 1.00 PiB" in report.read_text("utf-8")
