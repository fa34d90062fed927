"""``suggest()`` on steps of TensorFlow and Keras, its predictions against what is measured."""

import os
import subprocess
import sys

import keras
import pytest
import tensorflow as tf
import tf_suggest_programs as programs

import tensorlens
from tensorlens.cli import main
from tensorlens.errors import UsageError
from tensorlens.planning import ProgramFailed, processes
from tensorlens.planning.tensorflow import StepWatch
from tests import warm
from tests.pasted_code import pasted, printed_code

A = programs.OUTPUT_BYTES
HANDLE = 200
"""Bytes that a variable has beside its value, in TensorFlow's CPU allocator."""
LOOP = 2 * programs.LAYERS
"""Layers of a loop of one's own."""
LOOP_BYTES = 4 * LOOP * (programs.WIDTH**2 + programs.WIDTH)


@pytest.fixture(autouse=True, scope="module")
def warm_processes():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "interpreter", lambda: warm.python(tensorflow=True))
        yield


def verified(make_step):
    return tensorlens.suggest(make_step, verify=True, top=9, steps=1)


@pytest.fixture(scope="module")
def mlp():
    return verified(programs.make_mlp)


def check(found, kinds):
    assert {each.kind for each in found} == kinds
    for each in found:
        assert each.measured_saving is not None, each.missing
        assert each.predicted_saving == pytest.approx(each.measured_saving, rel=0.05), each
        assert each.predicted_peak == found.peak - each.predicted_saving


def test_predictions_for_a_stack_of_layers_are_what_is_measured(mlp):
    check(mlp, {"checkpoint", "optimizer", "bf16"})
    # what products in bfloat16 take while they run is counted too
    bf16 = mlp["bf16"]
    assert bf16.predicted_saving == pytest.approx(bf16.measured_saving, rel=0.02)


def test_predictions_for_a_transformer_are_what_is_measured():
    # SGD writes rows of the embedding, which is copied whenever it is read from then on
    check(verified(programs.make_encoder), {"checkpoint", "optimizer", "bf16"})


def test_the_state_of_adam_by_hand(mlp):
    count, nbytes = programs.weights(programs.BLOCKS)
    slots = 2 * (nbytes + count * HANDLE)
    assert mlp["optimizer"].predicted_saving == pytest.approx(slots, rel=0.05)
    assert mlp["optimizer"].how == "replayed"
    assert mlp["optimizer"].option == {"optimizer": "sgd"}


def test_suggestion_texts(mlp):
    assert mlp["checkpoint"].change == f"recompute {programs.BLOCKS} blocks"
    assert mlp["checkpoint"].what.startswith(f"{programs.BLOCKS} x Block: block")
    assert mlp["checkpoint"].option == {"recompute": "blocks"}
    assert mlp["checkpoint"].how == "replayed"
    assert mlp["bf16"].how == "simulated" and "mixed_bfloat16" in mlp["bf16"].code
    assert mlp["bf16"].option == {"policy": "mixed_bfloat16"}


@pytest.mark.parametrize("columns", [60, 120])
def test_printed_code_can_be_pasted(columns, mlp, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    blocks = [programs.Block(name=f"block_{n}" if n else "block") for n in range(programs.BLOCKS)]
    model = keras.Sequential([keras.Input((programs.WIDTH,)), *blocks])
    before = keras.config.dtype_policy()
    try:
        spaces = pasted(mlp, {"tf": tf, "keras": keras, "model": model})
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    finally:
        keras.config.set_dtype_policy(before)
    assert type(spaces["SGD"]["optimizer"]) is keras.optimizers.SGD
    assert mlp["optimizer"].code == "optimizer = keras.optimizers.SGD(learning_rate=0.001)"
    assert all("recomputed" in block.call.__qualname__ for block in blocks)


def test_pasted_code_saves_what_was_measured(mlp):
    change = {"arguments": {"change": printed_code(mlp, mlp["checkpoint"])}}
    found = tensorlens.compare(programs.make_mlp, {"changed": change}, repeats=1, steps=1)
    saved = mlp.peak - found["changed"].peak_allocated
    assert saved == pytest.approx(mlp["checkpoint"].measured_saving, rel=0.01)


@pytest.mark.parametrize("run_eagerly", [True, False])
def test_pasted_code_computes_a_block_twice_that_keras_tells_of_training(mlp, run_eagerly):
    class Block(keras.layers.Layer):
        def call(self, x, training=None):
            calls.append(training)
            return tf.tanh(x) * tf.tanh(x)

    calls = []
    names = [f"block_{n}" if n else "block" for n in range(programs.BLOCKS)]
    layers = [keras.layers.Dense(4), *(Block(name=name) for name in names)]
    model = keras.Sequential([keras.Input((4,)), *layers])
    model.compile("sgd", "mse", run_eagerly=run_eagerly, jit_compile=False)
    exec(printed_code(mlp, mlp["checkpoint"]), {"tf": tf, "model": model})
    calls.clear()
    model.train_on_batch(tf.ones([2, 4]), tf.ones([2, 4]))
    assert len(calls) >= 2 * programs.BLOCKS
    assert set(calls) == {True}


def make_graph():
    return programs.make_mlp(run_eagerly=False, blocks=2, layers=2)


def test_a_compiled_graph():
    found = tensorlens.suggest(make_graph)
    slots = 2 * programs.weights(2, 2)[1]
    assert found["optimizer"].predicted_saving == pytest.approx(slots, rel=0.05)
    assert {each.how for each in found} == {"simulated"}
    assert "simulated is one likely order" in " ".join(found.notes)


ALONE = """
import sys
import tensorlens
import tf_suggest_programs as programs
from tensorlens.planning.suggest import api as asking

asking._MIN_SAVING_FRACTION = 0
with tensorlens.record() as recording:
    step = programs.make_tape()
    for number in range(1, 4):
        recording.mark(f"step {number}")
        step()
found = tensorlens.suggest(recording, top=9)
for kind in ("optimizer", "kept"):
    print(kind, found[kind].predicted_saving, found[kind].change, sep="|")
print(repr(found["kept"].code))
print({str(each.how) for each in found})
recording.save(sys.argv[1])
"""


def test_a_recording_alone(tmp_path, capsys):
    # its own process: a recording has all that its process holds, and whatever else records there
    saved = tmp_path / "steps.tlens"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [*warm.python(tensorflow=True), "-c", ALONE, str(saved)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    optimizer, kept, code, how = done.stdout.splitlines()
    saved_by_sgd = int(optimizer.split("|")[1])
    assert saved_by_sgd == pytest.approx(2 * LOOP_BYTES, rel=0.01)
    # of the two steps before the last
    assert kept == f"kept|{2 * A}|release outputs after the step"
    assert "float(...)" in code and code.endswith("\\ndel outputs'")
    assert how == "{'replayed'}"
    assert main(["suggest", str(saved), "--top", "1"]) == 0
    assert "SGD" in capsys.readouterr().out


def make_nothing_to_train():
    import tensorflow as tf

    return lambda: tf.reduce_sum(tf.ones([1000, 1000]))


def test_note_when_nothing_to_suggest():
    found = tensorlens.suggest(make_nothing_to_train)
    assert len(found) == 0
    assert "no optimizer of Keras" in " ".join(found.notes)


def make_failing():
    import tensorflow as tf

    return lambda: tf.ones([2, 3]) @ tf.ones([2, 3])


def test_failing_program_is_one_line():
    with pytest.raises(ProgramFailed, match="Matrix size-incompatible"):
        tensorlens.suggest(make_failing)
    with pytest.raises(UsageError, match="only the CPU memory of TensorFlow's steps"):
        tensorlens.suggest(programs.make_mlp, device="cuda")


def test_one_shot_gradients_are_left_to_the_optimizer():
    weight, optimizer = keras.Variable([1.0]), keras.optimizers.SGD(1.0)
    with StepWatch().on():
        optimizer.apply([tf.constant([0.25])], iter([weight]))
    assert weight.numpy().tolist() == [0.75]


def test_a_recorded_graph_keeps_nothing_too_long():
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(64)]
    )
    model.compile("adam", "mse")
    x, y = tf.ones((64, 8)), tf.ones((64, 64))
    with tensorlens.record() as recording:
        model.fit(x, y, batch_size=16, verbose=0)
    # a graph gives back all that forward made
    assert "kept" not in {each.kind for each in tensorlens.suggest(recording, top=9)}
