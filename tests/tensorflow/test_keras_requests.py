"""A Keras model with each function that estimates, and each way to say the card."""

import re

import keras
import pytest
from keras import layers

import tensorlens
from tensorlens.cli import main
from tensorlens.errors import UsageError
from tensorlens.planning import processes
from tests import warm
from tests.card_checks import check_largest_batch


@pytest.fixture(autouse=True, scope="module")
def frameworks_already_imported():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "interpreter", lambda: warm.python(device=True, keras=True))
        yield


@pytest.fixture(scope="module")
def model():
    found = keras.Sequential([keras.Input((1 << 20,)), layers.Dense(4)])
    found.compile("sgd", "mse")
    return found


def test_largest_batch_is_the_same_by_card_and_by_capacity(model):
    check_largest_batch(model, lowest=3000)


def test_estimates_of_cards_are_those_of_each(model):
    cards = {"t4": "Tesla T4", "h100": "NVIDIA H100 80GB HBM3"}
    found = tensorlens.estimate_cards(model, [*cards], batch_size=2)
    assert [*found] == [*cards.values()]
    for short, name in cards.items():
        alone = tensorlens.estimate(model, card=short, batch_size=2)
        assert bool(found[name].fits) is bool(alone.fits) is True
        assert found[name].needed == alone.needed


def test_scaling_is_of_the_batch(model):
    found = tensorlens.scaling(model, values=(64, 128, 256), card="t4")
    peaks = {value: found.estimates[value].peak_allocated for value in (64, 128, 256)}
    # each sample has 1 Mi floats, and less than a KiB beside them
    for low, high in ((64, 128), (128, 256)):
        assert 0 <= peaks[high] - peaks[low] - ((high - low) << 22) < (high - low) << 10
    with pytest.raises(UsageError, match="sequence: of a Keras model the batch alone varies"):
        tensorlens.scaling(model, "sequence")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"card": "t44"}, 'no card is known as "t44"; nearest: t4'),
        ({"steps": 0}, "steps=0: it is a number, at least 1"),
        ({"batchsize": 2}, "batchsize: a Keras model has no such argument; nearest: batch_size"),
        ({"world_size": 2}, "arguments, script_args and world_size are for a make_step"),
    ],
)
def test_bad_requests_have_the_same_message(model, given, said):
    for ask in (
        tensorlens.estimate,
        lambda of, card="t4", **more: tensorlens.estimate_cards(of, [card], **more),
        lambda of, card="t4", **more: tensorlens.max_batch(of, card=card, **more),
        tensorlens.scaling,
    ):
        with pytest.raises(UsageError) as caught:
            ask(model, **given)
        assert str(caught.value).startswith(said)


INPUTS = 1 << 17
"""So many that a small batch fills what is asked for: fewer are tried."""
STEPS = f"""
import keras
import numpy as np
from keras import layers

def model():
    found = keras.Sequential([keras.Input(({INPUTS},)), layers.Dense(50), layers.Dense(4)])
    found.compile("adam", "mse")
    return found

def step(batch=16):
    made = model()
    arrays = np.zeros((batch, {INPUTS}), "float32"), np.zeros((batch, 4), "float32")
    return lambda: made.train_on_batch(*arrays)

def epoch(batch=16):
    made = model()
    arrays = np.zeros((3 * batch, {INPUTS}), "float32"), np.zeros((3 * batch, 4), "float32")
    return lambda: made.fit(*arrays, batch_size=batch, verbose=0)
"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    file = tmp_path_factory.mktemp("steps") / "steps.py"
    file.write_text(STEPS)
    return file


def test_a_function_that_makes_or_trains_a_model_is_estimated_as_the_model_is(steps):
    known = tensorlens.estimate(made(), batch_size=16)
    of_model = tensorlens.estimate(f"{steps}:model", batch_size=16)
    trained = [tensorlens.estimate(f"{steps}:{name}") for name in ("step", "epoch")]
    for found in (of_model, *trained):
        assert found.peak_allocated == known.peak_allocated
        assert found.by_role == known.by_role
    # both are multiples of 256 B
    assert of_model.by_role["input"] == 16 * (INPUTS + 4) * 4


def made(inputs=INPUTS):
    found = keras.Sequential([keras.Input((inputs,)), layers.Dense(50), layers.Dense(4)])
    found.compile("adam", "mse")
    return found


SCRIPT = f"""{STEPS}
step(8)()
open("trained", "w").close()
"""
OWN_LOOP = """
import keras
import tensorflow as tf

layer, optimizer = keras.layers.Dense(4), keras.optimizers.SGD()
layer.build((None, 8))
with tf.GradientTape() as tape:
    loss = tf.reduce_sum(layer(tf.ones((2, 8))))
optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
"""


def test_a_script_is_ended_where_it_trains_a_model(tmp_path, monkeypatch):
    # Keras is imported by the script, and not with torch
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(tensorflow=True))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    found = tensorlens.estimate("train.py", card="t4")
    known = tensorlens.estimate(made(), card="t4", batch_size=8)
    assert (found.peak_allocated, found.by_role) == (known.peak_allocated, known.by_role)
    assert not (tmp_path / "trained").exists()
    ended = "the program was ended where it trains sequential"
    assert [each for each in found.warnings if each.text.startswith(ended)]


FITTED = """
import keras
import numpy as np
from keras import layers

inner = [layers.Embedding(10, 8), layers.LSTM(4), layers.Dense(1)]
model = keras.Sequential([keras.Input(({length},), dtype="int32"), *inner])
model.compile("sgd", "mse")
model.fit(np.zeros((64, 20), "int32"), np.zeros((64, 1)), {sizes})
"""


@pytest.mark.parametrize(
    ("length", "sizes"),
    [
        pytest.param("None", "batch_size=16", id="open dimension"),
        pytest.param("20", "16, 2", id="by position"),
    ],
)
def test_a_script_tells_the_batch_that_it_trains_with(tmp_path, length, sizes):
    file = tmp_path / "fitted.py"
    file.write_text(FITTED.format(length=length, sizes=sizes))
    found = tensorlens.estimate(str(file), device="cpu")
    # 20 whole numbers each, and a target
    assert found.by_role["input"] == 16 * (20 * 4 + 4)


def test_a_training_loop_of_its_own_is_refused_with_what_to_do_instead(tmp_path):
    (tmp_path / "loop.py").write_text(OWN_LOOP)
    with pytest.raises(UsageError, match=r"a loop of its own on TensorFlow cannot be estimated"):
        tensorlens.estimate(str(tmp_path / "loop.py"))


def figures(estimates):
    return {
        value: (each.batch, each.needed, each.reserved, each.allocated, each.by_role)
        for value, each in estimates.items()
    }


def test_the_tool_varies_the_batch_of_a_function_that_takes_none():
    known = tensorlens.max_batch(made(), "1 GiB", highest=2)
    found = tensorlens.max_batch(made, "1 GiB", highest=2, arguments={"inputs": INPUTS})
    assert found.estimate.largest == known.estimate.largest
    assert figures(found.estimates) == figures(known.estimates)
    # the same layers, not the next ones of the same kinds
    made_of = {tuple(sorted(map(str, each.by_module))) for each in found.estimates.values()}
    assert len(made_of) == 1


def test_command_line_varies_the_batch_of_a_function_that_takes_none(steps, capsys):
    words = ["--max-batch", "--card", "t4", "--capacity", "400MiB"]
    assert main(["estimate", f"{steps}:model", *words]) == 0
    said = capsys.readouterr().out
    (largest,) = map(
        int, re.findall(r"the largest batch that likely fits into 400.00 MiB is (\d+)", said)
    )
    assert f"{largest}, which is tight; {largest + 1} would likely need" in said
    needed = [
        tensorlens.estimate(made(), card="t4", batch_size=batch).needed.point
        for batch in (largest, largest + 1)
    ]
    assert needed[0] <= 400 << 20 < needed[1]


def test_options_of_a_function_that_makes_a_model_are_compared(steps):
    options = {"baseline": {}, "sgd": {"optimizer": "sgd"}}
    found = tensorlens.compare(f"{steps}:model", options, how="estimated", card="t4", batch=7)
    assert found.framework == "tensorflow"
    for name, changed in options.items():
        of_model = tensorlens.estimate(made(), card="t4", batch_size=7, **changed)
        assert found[name].peak_allocated == of_model.peak_allocated


def test_steps_of_a_model_that_a_function_makes_are_measured(steps):
    before = {
        batch: tensorlens.compare(f"{steps}:model", {"a": {}}, repeats=1, steps=1, batch=batch)
        for batch in (None, 96)
    }
    held = {batch: found["a"].setup_allocated for batch, found in before.items()}
    # inputs and 4 targets of 4 B each, by default of 32 samples
    assert held[96] - held[None] == (96 - 32) * (INPUTS + 4) * 4


def test_a_model_that_would_run_elsewhere_is_refused_in_one_line(model):
    said = "make_step is a model: give a function that builds"
    for ask in (lambda: tensorlens.compare(model, {"a": {}}), lambda: tensorlens.suggest(model)):
        with pytest.raises(UsageError, match=said):
            ask()


def test_changes_to_a_function_that_makes_a_model_are_suggested(steps):
    found = tensorlens.suggest(f"{steps}:model")
    assert [each.change for each in found] == ["SGD"]


def test_command_line_takes_the_batch_of_a_model(steps, capsys):
    known = tensorlens.estimate(made(), batch_size=5, card="t4")
    assert main(["estimate", f"{steps}:model", "--card", "t4", "--batch-size", "5"]) == 0
    assert f"{known.peak_allocated:,}" in capsys.readouterr().out
    assert main(["estimate", f"{steps}:model", "--card", "t4", "--batch-size", "0"]) == 2
    assert "--batch-size 0: how many samples a step has, at least 1" in capsys.readouterr().err


def test_arguments_of_models_are_refused_where_none_is_made(tmp_path):
    file = tmp_path / "steps.py"
    # of what runs torch nothing else is to be said
    file.write_text("import torch\ndef step():\n    return lambda: torch.ones(4).cuda()\n")
    with pytest.raises(UsageError, match=r"batch_size: these are arguments of Keras models"):
        tensorlens.estimate(f"{file}:step", batch_size=2)
