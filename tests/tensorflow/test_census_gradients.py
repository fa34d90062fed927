"""Gradients are told by the shapes of a model's weights."""

import gc
import weakref

import keras
import pytest
import tensorflow as tf
from tf_census_checks import Since

from tensorlens.frameworks.tensorflow import cpu, named_rows


@pytest.fixture(autouse=True)
def counted():
    tf.zeros(1)
    cpu.install()
    keras.backend.clear_session()
    yield
    gc.collect()


def gradients(since, *roots):
    """Return the shapes of what is new and a gradient, by name."""
    found = [each for each in since.records(*roots) if each.role == "gradient"]
    assert len({each.name for each in found}) == len(found)
    assert all(each.alias_of is None for each in found)
    assert {each.note for each in found} <= {named_rows.NOTE}
    return {each.name: each.shape for each in found}


def dense():
    return keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])


OF_DENSE = {"sequential/dense/kernel.grad": (8, 4), "sequential/dense/bias.grad": (4,)}


def test_gradients_of_all_weights():
    model = dense()
    since = Since()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((2, 8))) ** 2)
    g = tape.gradient(loss, model.trainable_variables)
    del tape, loss
    assert gradients(since, model) == OF_DENSE
    gone = [weakref.ref(each) for each in g]
    del g
    assert [each() for each in gone] == [None, None]


def test_gradients_returned_by_a_function():
    model = dense()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones((2, 8))) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    since = Since()
    g = step()
    assert gradients(since, model) == OF_DENSE
    del g


def test_gradients_of_an_embedding():
    model = keras.Sequential([keras.layers.Embedding(50, 6), keras.layers.Dense(6)])
    ids = tf.constant([[1, 2, 2]])
    model(ids)
    since = Since()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(ids))
    g = tape.gradient(loss, model.trainable_variables)
    del tape, loss
    found = since.sizes(model)
    assert isinstance(g[0], tf.IndexedSlices)
    name = "sequential/embedding/embeddings.grad"
    assert found[f"{name}.values"] == ("gradient", 3 * 6 * 4)
    assert found[f"{name}.dense_shape"][0] == "gradient"
    held = weakref.ref(g[0].values)
    del g
    assert held() is None


def test_single_tensor_is_no_gradient():
    model = dense()
    since = Since()
    alone = [tf.ones((8, 4))]
    assert gradients(since, model) == {}
    assert alone
