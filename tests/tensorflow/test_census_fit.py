"""After training with ``fit`` the ledger balances: what is not named is below 0.1 %."""

import gc
import subprocess
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from tf_census_checks import Since

import tensorlens
from tensorlens.frameworks.tensorflow import cpu
from tests.warm import python


@pytest.fixture(autouse=True)
def tidy():
    tf.zeros(1)
    cpu.install()
    keras.backend.clear_session()
    yield
    gc.collect()


def mlp():
    return keras.Sequential(
        [
            keras.layers.Input((256,)),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def cnn():
    return keras.Sequential(
        [
            keras.layers.Input((16, 16, 3)),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


@pytest.mark.parametrize("eagerly", [False, True])
def test_the_remainder_after_fit(eagerly):
    since = Since()
    model, shape = cnn(), (16, 16, 3)
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=eagerly)
    data, target = np.zeros((64, *shape), np.float32), np.zeros((64, 10), np.float32)
    model.fit(data, target, batch_size=32, epochs=1, verbose=0)
    gc.collect()
    found = since.records(model)
    weights = sum(each.nbytes for each in found if each.role == "parameter")
    slots = sum(
        each.nbytes for each in found if each.role == "optimizer" and "sequential" in each.name
    )
    assert weights == 4 * sum(int(np.prod(each.shape)) for each in model.trainable_weights)
    assert slots == 2 * weights
    assert since.grown("named") >= 3 * weights
    assert 0 <= since.grown("unnamed") < since.grown("allocated") / 1000


def test_the_report_end_to_end():
    model = mlp()
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    snapshot = tensorlens.MemReporter(model, optimizer).snapshot()
    by_name = {each.name: each for each in snapshot.tensors}
    kernel = by_name["sequential/dense/kernel"]
    assert (kernel.nbytes, kernel.role, kernel.device) == (256 * 1024 * 4, "parameter", "cpu")
    assert by_name["Adam.sequential/dense/kernel.velocity"].nbytes == 256 * 1024 * 4
    ledger = snapshot.ledger["cpu"]
    assert ledger.named + ledger.unnamed == ledger.allocated
    assert "sequential/dense/kernel" in str(snapshot)


def test_tensors_older_than_the_hook_are_counted():
    program = """
        import numpy as np
        import tensorflow as tf
        weight = tf.Variable(tf.random.normal((100, 100)))
        shared = tf.experimental.dlpack.from_dlpack(np.ones((64, 64), np.float32).__dlpack__())
        import tensorlens
        ledger = tensorlens.MemReporter().snapshot().ledger["cpu"]
        print(ledger.named == ledger.allocated, 40_000 <= ledger.named < 42_000)
        del weight
        print(tensorlens.MemReporter().snapshot().ledger["cpu"].named < 2000)
    """
    done = subprocess.run(
        [*python(tensorflow=True), "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "True", "True"]
