"""``MemoryCallback`` in the ``Trainer`` of Hugging Face, on models with random weights."""

import gc
import inspect
import json
import types
import weakref

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from alive import alive  # noqa: E402

import tensorlens  # noqa: E402
from tensorlens.errors import UsageError  # noqa: E402
from tensorlens.integrations.transformers import MemoryCallback  # noqa: E402


class Logger(transformers.TrainerCallback):
    """Stands before ours in the list, as the trainer puts its loggers."""

    def __init__(self):
        self.logged = []

    def on_log(self, args, state, control, logs=None, **given):
        self.logged.append(dict(logs))


class Hoarder(transformers.TrainerCallback):
    def __init__(self):
        self.kept = []

    def on_step_end(self, args, state, control, **given):
        self.kept.append(torch.zeros(1000))


def gpt2():
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def trainer(model, folder, *callbacks, steps=8, **options):
    ids = torch.arange(16) % 128
    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=2, max_steps=steps, logging_steps=2,
        use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True, **options,
    )  # fmt: skip
    data = [{"input_ids": ids, "labels": ids}] * 64
    return transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=data[:4], callbacks=[*callbacks]
    )


def test_memory_by_role_reaches_loggers_and_history(tmp_path):
    others = {role: alive(role) for role in ("parameter", "optimizer")}
    model, logger = gpt2(), Logger()
    run = trainer(model, tmp_path, logger, MemoryCallback(roles_every=1))
    run.train()
    parameters = sum(each.nbytes for each in model.parameters())
    count = len([*model.parameters()])
    for seen in (logger.logged[0], run.state.log_history[0]):
        assert seen["memory/parameter_mem"] - others["parameter"] == parameters
        # two moments, and a step of four bytes for each parameter
        slots = seen["memory/optimizer_mem"] - others["optimizer"]
        assert slots == 2 * parameters + 4 * count
        current = seen["memory/current_allocated_mem"]
        # the trainer sets gradients to None before the step ends
        assert current >= 3 * parameters + 4 * count
        assert seen["memory/peak_allocated_mem"] >= current + parameters
        phases = [seen[f"memory/peak_allocated_mem/{p}"] for p in ("forward_backward", "optimizer")]
        assert seen["memory/peak_allocated_mem"] == max(phases)


def test_figures_with_lora_are_of_all_weights(tmp_path):
    peft = pytest.importorskip("peft")
    others = {role: alive(role) for role in ("parameter", "optimizer")}
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(target_modules=["c_attn"], r=4))
    run = trainer(model, tmp_path, MemoryCallback(roles_every=1), steps=2)
    run.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    (seen, *_) = run.state.log_history
    weights = sum(each.nbytes for each in model.parameters())
    assert seen["memory/parameter_mem"] - others["parameter"] == weights
    moments = 2 * sum(each.nbytes for each in trained)
    assert seen["memory/optimizer_mem"] - others["optimizer"] == moments + 4 * len(trained)


def test_recorded_steps_and_leaks_are_files_of_the_run(tmp_path):
    callback = MemoryCallback(leaks=True, record_steps=(2, 4))
    trainer(gpt2(), tmp_path, Hoarder(), callback, steps=10).train()
    recording, leaks = map(tensorlens.load, callback.monitor.files)
    assert recording.peak("cpu").bytes > 0
    (leak,) = leaks.leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 4000)


class Greedy(transformers.GPT2LMHeadModel):
    """Memory runs out in training, or in evaluation."""

    def __init__(self, phase):
        super().__init__(gpt2().config)
        self.phase = phase

    def forward(self, input_ids, labels=None, **options):
        if self.phase == ("training" if self.training else "evaluation"):
            torch.empty(1 << 50, dtype=torch.uint8)
        return super().forward(input_ids, labels=labels, **options)


class GreedyAdam(torch.optim.Adam):
    def step(self, closure=None):
        torch.empty(1 << 50, dtype=torch.uint8)


def fails(run, phase):
    with pytest.raises(RuntimeError, match="allocate"):
        {
            "evaluation": run.evaluate,
            "prediction": lambda: run.predict(run.eval_dataset),
        }.get(phase, run.train)()


@pytest.mark.parametrize("is_added_later", [False, True])
@pytest.mark.parametrize("phase", ["training", "optimizer", "evaluation within training"])
def test_memory_that_runs_out_while_training_is_explained_beside_the_error_file(
    phase, is_added_later, tmp_path, monkeypatch
):
    launched = tmp_path / "attempt_0" / "0"
    launched.mkdir(parents=True)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(launched / "error.json"))
    callback = MemoryCallback()
    callbacks = [] if is_added_later else [callback]
    model = Greedy(phase.split()[0])
    run = trainer(model, tmp_path / "run", *callbacks, eval_strategy="steps", eval_steps=1)
    if is_added_later:
        run.add_callback(callback)
    if phase == "optimizer":
        run.optimizer = GreedyAdam(model.parameters())
    fails(run, phase)
    assert [each.parent for each in callback.monitor.files] == [tmp_path / "run", launched]
    for each in callback.monitor.files:
        assert "Tried to allocate 1.00 PiB" in each.read_text("utf-8")


@pytest.mark.parametrize("phase", ["evaluation", "prediction"])
def test_memory_that_runs_out_without_training_is_explained(phase, tmp_path):
    callback = MemoryCallback()
    fails(trainer(Greedy("evaluation"), tmp_path, callback), phase)
    (report,) = callback.monitor.files
    assert report.parent == tmp_path
    assert "Tried to allocate 1.00 PiB" in report.read_text("utf-8")


def test_a_callback_that_was_taken_out_explains_nothing(tmp_path):
    callback = MemoryCallback()
    run = trainer(Greedy("evaluation"), tmp_path, callback)
    run.remove_callback(callback)
    fails(run, "evaluation")
    assert callback.monitor.files == []


def test_a_trainer_is_not_kept_and_its_methods_keep_their_signatures(tmp_path):
    run = trainer(gpt2(), tmp_path, MemoryCallback(), steps=1)
    run.train()
    parameters = inspect.signature(transformers.Trainer.train).parameters
    assert "resume_from_checkpoint" in parameters
    gone = weakref.ref(run)
    # no cycle keeps it: what it holds is free at once
    gc.disable()
    try:
        del run
        assert gone() is None
    finally:
        gc.enable()


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    callback = MemoryCallback(folder=tmp_path / "file", leaks=True)
    run = trainer(gpt2(), tmp_path / "run", callback)
    run.train()
    assert run.state.global_step == 8
    assert callback.monitor.files == []
    assert "leaks.json was not written: cannot make " in capfd.readouterr().err


def test_a_leak_is_told_of_a_training_that_fails(tmp_path):
    class Failing(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **given):
            if state.global_step == 7:
                raise RuntimeError("its own")

    callback = MemoryCallback(leaks=True)
    with pytest.raises(RuntimeError, match="its own"):
        trainer(gpt2(), tmp_path, Hoarder(), callback, Failing(), steps=10).train()
    (path,) = callback.monitor.files
    (leak,) = tensorlens.load(path).leaks
    assert (leak.tensors_per_step, leak.bytes_per_step) == (1, 4000)


def test_options_that_mean_nothing_are_refused():
    with pytest.raises(UsageError, match="roles_every"):
        MemoryCallback(roles_every=-1)
    with pytest.raises(UsageError, match="record_steps"):
        MemoryCallback(record_steps=(4, 4))


def test_nothing_is_computed_differently(tmp_path):
    losses = []
    for callbacks in ([], [MemoryCallback(roles_every=1, leaks=True, record_steps=(0, 2))]):
        transformers.set_seed(1)
        run = trainer(gpt2(), tmp_path, *callbacks, seed=1)
        run.train()
        losses.append([each["loss"] for each in run.state.log_history if "loss" in each])
    assert losses[0] == losses[1]
    assert json.dumps(losses[0])


def test_a_batch_size_that_the_trainer_finds_too_large_is_no_failure(tmp_path, capfd):
    class Picky(transformers.GPT2LMHeadModel):
        def forward(self, input_ids, labels=None, **options):
            if len(input_ids) > 1:
                torch.empty(1 << 50, dtype=torch.uint8)
            return super().forward(input_ids, labels=labels, **options)

    callback = MemoryCallback(leaks=True, show=True)
    run = trainer(Picky(gpt2().config), tmp_path, callback, steps=4, auto_find_batch_size=True)
    run.train()
    # what was tried first is no step
    assert capfd.readouterr().err.rstrip().endswith("of 4")
    assert [each.name.split(".")[0] for each in callback.monitor.files] == ["leaks"]
    # the models are not kept
    assert callback.monitor._roots == ()


def test_an_evaluation_does_not_take_the_figures_of_training(tmp_path):
    callback = MemoryCallback()
    run = trainer(gpt2(), tmp_path, callback, steps=4, eval_strategy="steps", eval_steps=1)
    run.train()
    for logs in run.state.log_history:
        has_figures = any(name.startswith("memory/") for name in logs)
        assert has_figures == ("loss" in logs)


@pytest.mark.parametrize(
    ("logs", "is_of_training"),
    [
        ({"test_loss": 1.0, "test_runtime": 2.0, "test_samples_per_second": 3.0}, False),
        ({"eval_loss": 1.0}, False),
        ({"loss": 1.0, "epoch": 1.0}, True),
        ({"train_runtime": 2.0, "train_samples_per_second": 3.0, "train_loss": 1.0}, True),
    ],
)
def test_a_log_of_an_evaluation_is_left_alone(monkeypatch, logs, is_of_training):
    callback = MemoryCallback()
    monkeypatch.setattr(callback.monitor, "metrics", lambda: {"memory/peak": 1})
    state = types.SimpleNamespace(log_history=[dict(logs)])
    callback.on_log(None, state, None, logs)
    assert [("memory/peak" in each) for each in (logs, state.log_history[-1])] == [
        is_of_training,
        is_of_training,
    ]


def test_a_state_that_is_not_as_known_ends_no_training(capfd):
    MemoryCallback().on_log(None, object(), None, {"loss": 1.0})
    assert capfd.readouterr().err == (
        "tensorlens: loggers get no figures of memory:"
        " AttributeError: 'object' object has no attribute 'log_history'\n"
    )


class Own(transformers.Trainer):
    """Neither compared nor hashed, with an evaluation of its own."""

    __hash__ = None

    def __eq__(self, other):
        raise AssertionError("compared")

    def evaluate(self, *given, **options):
        loop = self.evaluation_loop
        return loop(self.get_eval_dataloader(), "its own", prediction_loss_only=True).metrics


def test_a_subclass_is_watched_from_the_first_call_on(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers, "Trainer", Own)
    callback = MemoryCallback()
    run = trainer(Greedy("evaluation"), tmp_path, steps=1)
    run.add_callback(callback)
    fails(run, "evaluation")
    assert len(callback.monitor.files) == 1
