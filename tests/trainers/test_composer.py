"""``MemoryCallback`` in the ``Trainer`` of Composer: ``make test-composer`` installs it."""

import importlib.util

import pytest
import torch

if importlib.util.find_spec("composer") and torch.version.cuda is None:
    # torchvision brings its operators for CUDA alone, and is not imported without these two
    operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
pytest.importorskip("composer", reason="Composer is not installed: make test-composer")

from alive import alive
from composer import Trainer
from composer.loggers import InMemoryLogger
from composer.models import ComposerModel

import tensorlens
from tensorlens.integrations.composer import MemoryCallback

WEIGHTS = 64 * 64 * 4
BATCHES = 8


class Net(ComposerModel):
    """A layer without bias; it keeps 4,000 bytes with each batch."""

    def __init__(self, fails_in=""):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64, bias=False)
        self.fails_in = fails_in
        self.kept = []

    def _run(self, phase, batch):
        if phase == self.fails_in:
            torch.empty(1 << 50, dtype=torch.uint8)
        return self.layer(batch)

    def forward(self, batch):
        return self._run("fit", batch)

    def loss(self, outputs, batch):
        self.kept.append(torch.zeros(1000))
        return outputs.square().mean()

    def eval_forward(self, batch, outputs=None):
        return self._run("eval", batch)

    def get_metrics(self, is_train):
        return {}

    def update_metric(self, batch, outputs, metric):
        pass


def batches():
    return torch.utils.data.DataLoader(torch.ones(32, 64), batch_size=4)


def trainer(model, *callbacks, optimizer=torch.optim.Adam, **options):
    return Trainer(
        model=model, train_dataloader=batches(), optimizers=optimizer(model.parameters()),
        max_duration="1ep", callbacks=[*callbacks], progress_bar=False, device="cpu",
        run_name="run", **options,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_loggers_get_memory_by_phase_and_role():
    roles = ("parameter", "gradient", "optimizer")
    others = {role: alive(role) for role in roles}
    logger = InMemoryLogger()
    run = trainer(Net(), MemoryCallback(roles_every=1), loggers=[logger])
    run.fit()
    data = {name: [value for _, value in values] for name, values in logger.data.items()}
    # two moments, and a step of four bytes
    expected = dict(zip(roles, (WEIGHTS, WEIGHTS, 2 * WEIGHTS + 4), strict=True))
    for role, nbytes in expected.items():
        assert [each - others[role] for each in data[f"memory/{role}_mem"]] == [nbytes] * BATCHES
    peaks = [data[f"memory/peak_allocated_mem/{p}"] for p in ("forward", "backward", "optimizer")]
    assert data["memory/peak_allocated_mem"] == [max(each) for each in zip(*peaks, strict=True)]
    reserved = zip(
        data["memory/peak_reserved_mem"], data["memory/current_reserved_mem"], strict=True
    )
    assert all(peak >= current > 0 for peak, current in reserved)
    run.close()


def test_recorded_batches_and_leaks_are_files_of_the_run(tmp_path):
    callback = MemoryCallback(leaks=True, record_steps=(2, 4))
    run = trainer(Net(), callback)
    run.fit()
    assert {each.parent.resolve() for each in callback.monitor.files} == {tmp_path / "run"}
    recording, leaks = map(tensorlens.load, callback.monitor.files)
    assert recording.peak("cpu").bytes > 0
    (leak,) = leaks.leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 4000)
    run.close()


class GreedyAdam(torch.optim.Adam):
    def step(self, closure=None):
        torch.empty(1 << 50, dtype=torch.uint8)


@pytest.mark.parametrize("phase", ["fit", "optimizer", "eval within fit", "eval", "predict"])
def test_memory_that_runs_out_in_any_phase_is_explained(phase, tmp_path, monkeypatch):
    launched = tmp_path / "attempt_0"
    launched.mkdir()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(launched / "error.json"))
    callback = MemoryCallback()
    fails_in = {"eval within fit": "eval", "predict": "fit"}.get(phase, phase)
    options = {"eval_dataloader": batches()} if phase == "eval within fit" else {}
    optimizer = GreedyAdam if phase == "optimizer" else torch.optim.Adam
    run = trainer(Net(fails_in), callback, optimizer=optimizer, **options)
    with pytest.raises(RuntimeError, match="allocate"):
        {"eval": run.eval, "predict": run.predict}.get(phase, run.fit)(
            *([batches()] if phase in ("eval", "predict") else [])
        )
    folders = [each.parent.resolve() for each in callback.monitor.files]
    assert folders == [tmp_path / "run", launched]
    for each in callback.monitor.files:
        assert "Tried to allocate 1.00 PiB" in each.read_text("utf-8")
    run.close()


def test_nothing_is_computed_differently():
    weights = []
    for callbacks in ([], [MemoryCallback(roles_every=1, leaks=True, record_steps=(0, 2))]):
        torch.manual_seed(1)
        model = Net()
        run = trainer(model, *callbacks, seed=1)
        run.fit()
        run.close()
        weights.append(model.layer.weight.detach().clone())
    assert torch.equal(*weights)
