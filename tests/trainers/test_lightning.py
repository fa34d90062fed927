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
    def __init__(self, fails_in=""):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64, bias=False)
        self.fails_in = fails_in
        self.kept = []

    def training_step(self, batch, batch_idx):
        self._fail("training")
        self.kept.append(torch.zeros(1000))
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self._fail("validation")

    def predict_step(self, batch, batch_idx):
        self._fail("prediction")

    def _fail(self, phase):
        if phase == self.fails_in:
            torch.empty(1 << 50, dtype=torch.uint8)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def batches():
    return torch.utils.data.DataLoader(torch.ones(32, 64), batch_size=4)


def trainer(folder, callback, logger=False):
    return lightning.Trainer(
        max_epochs=2, default_root_dir=folder, logger=logger, callbacks=[callback],
        log_every_n_steps=2, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", num_sanity_val_steps=0,
    )  # fmt: skip


def test_loggers_get_memory_by_phase_and_role(tmp_path):
    roles = ("parameter", "gradient", "optimizer")
    others = {role: alive(role) for role in roles}
    logger = lightning.loggers.CSVLogger(tmp_path)
    trainer(tmp_path, MemoryCallback(roles_every=1), logger).fit(Net(), batches())
    with Path(logger.log_dir, "metrics.csv").open(encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert [row["step"] for row in rows] == [1, 3, 5, 7, 9, 11, 13, 15]
    for row in rows:
        # two moments, and a step of four bytes
        own = [row[f"memory/{role}_mem"] - others[role] for role in roles]
        assert own == [WEIGHTS, WEIGHTS, 2 * WEIGHTS + 4]
        phases = ("forward", "backward", "optimizer")
        peaks = [row[f"memory/peak_allocated_mem/{phase}"] for phase in phases]
        assert row["memory/peak_allocated_mem"] == max(peaks)


class TwoOptimizers(Net):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers():
            loss = self.layer(batch).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("loss", loss)

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters()) for _ in range(2)]


def test_memory_has_the_step_of_the_loss_with_several_optimizers(tmp_path):
    logger = lightning.loggers.CSVLogger(tmp_path)
    trainer(tmp_path, MemoryCallback(), logger).fit(TwoOptimizers(), batches())
    with Path(logger.log_dir, "metrics.csv").open(encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    memory, loss = (
        [row["step"] for row in rows if row[name]] for name in ("memory/peak_allocated_mem", "loss")
    )
    assert memory == loss == ["1", "3", "5", "7", "9", "11", "13", "15"]


def test_recorded_steps_and_leaks_are_files_of_the_run(tmp_path):
    callback = MemoryCallback(leaks=True, record_steps=(2, 4))
    trainer(tmp_path, callback).fit(Net(), batches())
    recording, leaks = map(tensorlens.load, callback.monitor.files)
    assert recording.peak("cpu").bytes > 0
    (leak,) = leaks.leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 4000)


@pytest.mark.parametrize("phase", ["training", "validation", "validation alone", "prediction"])
def test_memory_that_runs_out_is_explained(phase, tmp_path):
    callback, model = MemoryCallback(), Net(phase.split()[0])
    run = trainer(tmp_path, callback)
    with pytest.raises(RuntimeError, match="allocate"):
        if phase == "prediction":
            run.predict(model, batches())
        elif phase == "validation alone":
            run.validate(model, batches())
        else:
            run.fit(model, batches(), batches())
    (report,) = callback.monitor.files
    assert report.parent == tmp_path
    assert "Tried to allocate 1.00 PiB" in report.read_text("utf-8")


def test_a_trainer_that_is_not_as_known_ends_no_training(capfd):
    MemoryCallback().on_train_batch_end(object(), None, None, None, 0)
    assert capfd.readouterr().err == (
        "tensorlens: loggers get no figures of memory:"
        " AttributeError: 'object' object has no attribute 'fit_loop'\n"
    )
