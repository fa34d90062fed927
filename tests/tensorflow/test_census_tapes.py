"""Tensors that only a tape keeps, and the gradients that come of it."""

import gc

import keras
import pytest
import tensorflow as tf
from tf_census_checks import Since

from tensorlens.frameworks.tensorflow import cpu


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
            keras.layers.Input((8,)),
            keras.layers.Dense(64, activation="tanh"),
            keras.layers.Dense(2, activation="sigmoid"),
        ]
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_activations_that_only_a_tape_keeps(persistent):
    model, x = mlp(), tf.random.normal((16, 8))
    since = Since()
    with tf.GradientTape(persistent=persistent) as tape:
        loss = tf.reduce_sum(model(x))
    found = since.records(model)
    label = "test_activations_that_only_a_tape_keeps(): loss"
    # the two layers' outputs, and the loss
    assert sorted(each.nbytes for each in found if each.alias_of is None)[-2:] == [128, 16 * 64 * 4]
    assert {each.role for each in found} == {"other"}
    others = {each.name for each in found} - {label}
    assert all(each.startswith(("made at", "held by NumPy or native code")) for each in others)
    # what a layer reads of its own variable is no second buffer
    reads = [each for each in found if each.nbytes == 64 * 2 * 4]
    assert all(each.alias_of == "sequential/dense_1/kernel" for each in reads)
    assert since.grown("unnamed") == 0
    assert since.grown("named") == since.grown("allocated")
    gradients = tape.gradient(loss, model.trainable_variables)
    del tape
    assert 16 * 64 * 4 not in {each.nbytes for each in since.records(model)}
    assert len(gradients) == 4


def test_gradients_are_named_after_their_weights():
    model, x = mlp(), tf.random.normal((16, 8))
    since = Since()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(x))
    gradients = tape.gradient(loss, model.trainable_variables)
    del tape, loss
    assert since.sizes(model) == {
        "sequential/dense/kernel.grad": ("gradient", 8 * 64 * 4),
        "sequential/dense/bias.grad": ("gradient", 64 * 4),
        "sequential/dense_1/kernel.grad": ("gradient", 64 * 2 * 4),
        "sequential/dense_1/bias.grad": ("gradient", 2 * 4),
    }
    assert len(gradients) == 4


def test_a_gradient_that_is_missing_and_a_sparse_one():
    table, other = tf.Variable(tf.ones((50, 6)), name="table"), tf.Variable(tf.ones(3))
    weights = [table, other, tf.Variable(tf.ones(7))]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.gather(table, [1, 2, 2])) + tf.reduce_sum(weights[2])
    since = Since()
    gradients = tape.gradient(loss, weights)
    del tape, loss
    found = since.sizes(weights=weights)
    assert gradients[1] is None
    assert found["weights[2].grad"] == ("gradient", 28)
    label = "test_a_gradient_that_is_missing_and_a_sparse_one(): table"
    assert found[f"{label}.grad.values"] == ("gradient", 3 * 6 * 4)
    assert found[f"{label}.grad.dense_shape"] == ("gradient", 2 * 4)


def test_a_captured_tensor_and_a_constant_of_a_function():
    weight = tf.Variable(tf.ones((5, 5)))
    table = tf.random.normal((40, 5))

    @tf.function
    def call(x):
        return tf.matmul(tf.matmul(table, x), weight)

    since = Since()
    result = call(tf.ones((5, 5)))
    found = since()
    label = "test_a_captured_tensor_and_a_constant_of_a_function(): "
    assert found[f"{label}result"].nbytes == 40 * 5 * 4
    assert found[f"{label}result"].role == "other"
    # what the function captured is what the program holds: no second buffer
    same = [each for each in found.values() if each.shape == (40, 5) and each.alias_of is None]
    assert [each.name for each in same] == [f"{label}result"]
    (table_row,) = [each for each in since.last.tensors if each.name == f"{label}table"]
    assert (table_row.nbytes, table_row.alias_of) == (40 * 5 * 4, None)
    assert result is not None
