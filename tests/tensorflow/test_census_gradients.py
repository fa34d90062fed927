"""Gradients are told by the tapes that gave them, while someone watches."""

import gc
import weakref

import keras
import pytest
import tensorflow as tf
from tensorflow.python.eager import backprop
from tf_census_checks import Since

from tensorlens.frameworks.tensorflow.attribution import tape_gradients
from tensorlens.frameworks.tensorflow.census.gradients import NOTE
from tensorlens.frameworks.tensorflow.native import install
from tensorlens.frameworks.tensorflow.observation import watch


@pytest.fixture(autouse=True)
def watched():
    tf.zeros(1)
    install()
    keras.backend.clear_session()
    unwatch = watch()
    yield unwatch
    unwatch()
    gc.collect()


def gradients(since, *roots, **named):
    """Return the shapes of what is new and a gradient, by name."""
    found = [each for each in since.records(*roots, **named) if each.role == "gradient"]
    assert len({each.name for each in found}) == len(found)
    assert all(each.alias_of is None for each in found)
    return {each.name: each.shape for each in found}


class TwoWeights(tf.Module):
    def __init__(self):
        super().__init__()
        self.e = tf.Variable(tf.ones((3, 5)))
        self.w = tf.Variable(tf.ones((5, 3)))


def test_copies_of_weights_are_no_gradients():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])
    since = Since()
    copies = [tf.identity(each.value) for each in model.trainable_variables]
    pairs = list(zip(copies, model.trainable_variables, strict=True))
    found = since.sizes(model)
    assert sorted(found.values()) == [("other", 4 * 4), ("other", 8 * 4 * 4)]
    assert not any(".grad" in name for name in found)
    del pairs, copies


def test_of_a_single_variable():
    w = tf.Variable(tf.ones((6, 7)))
    since = Since()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w)
    g = tape.gradient(loss, w)
    del tape, loss
    (found,) = [each for each in since.records() if each.shape == (6, 7)]
    assert (found.name, found.role) == ("test_of_a_single_variable(): w.grad", "gradient")
    assert (found.nbytes, found.note) == (6 * 7 * 4, None)
    assert g.shape == (6, 7)


def test_of_some_weights_in_another_order():
    m = TwoWeights()
    since = Since()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.matmul(m.w * m.w, m.e))
    g = tape.gradient(loss, {"second": m.w, "first": [m.e]})
    only = g["first"]
    del tape, loss
    assert gradients(since, m=m) == {"m.w.grad": (5, 3), "m.e.grad": (3, 5)}
    del g
    assert gradients(since, m=m) == {"m.e.grad": (3, 5)}
    assert only


def test_of_an_embedding():
    model = keras.Sequential([keras.layers.Embedding(50, 6), keras.layers.Dense(6)])
    ids = tf.constant([[1, 2, 2]])
    model(ids)
    table = model.layers[0].embeddings
    since = Since()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(ids))
    g = tape.gradient(loss, [table])
    del tape, loss
    found = since.sizes(model)
    assert isinstance(g[0], tf.IndexedSlices)
    name = "sequential/embedding/embeddings.grad"
    assert found[f"{name}.values"] == ("gradient", 3 * 6 * 4)
    assert found[f"{name}.dense_shape"][0] == "gradient"
    assert {each.note for each in since.last.tensors if each.name == f"{name}.values"} == {None}
    held = weakref.ref(g[0].values)
    del g
    assert held() is None


def test_a_persistent_tape_asked_twice():
    w, v = tf.Variable(tf.ones((2, 9))), tf.Variable(tf.ones((2, 9)))
    since = Since()
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_sum(w * v * v)
    of_v = tape.gradient(loss, v)
    of_w = tape.gradient(loss, [w])
    del tape, loss
    label = "test_a_persistent_tape_asked_twice(): "
    expected = {f"{label}w.grad": (2, 9), f"{label}v.grad": (2, 9)}
    assert gradients(since) == expected
    del of_v
    assert set(gradients(since)) == {f"{label}w.grad"}
    assert of_w


def test_what_a_function_returns_is_told_by_shapes():
    model = keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(4)])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tf.ones((2, 8))) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    since = Since()
    g = step()
    name = "sequential/dense"
    expected = {f"{name}/kernel.grad": (8, 4), f"{name}/bias.grad": (4,)}
    assert gradients(since, model) == expected
    assert {each.note for each in since.last.tensors if each.name in expected} == {NOTE}
    del g


def test_nothing_is_kept_alive():
    w = tf.Variable(tf.ones(4))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w)
    gone = [weakref.ref(each) for each in (tape.gradient(loss, w), w, tape)]
    del w, tape, loss
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_a_tensor_that_was_there_before_keeps_its_name():
    w, seed = tf.Variable(tf.ones(4)), tf.random.normal((4,))
    with tf.GradientTape() as tape:
        same = tf.identity(w)
    g = tape.gradient(same, w, output_gradients=seed)
    notes = tape_gradients.NotedGradients().of
    assert seed._id not in notes
    assert g is seed or g._id in notes


def test_errors_are_those_of_the_tape():
    w = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = w * w
    assert tape.gradient(target=loss, sources=w).numpy() == 2.0
    with pytest.raises(RuntimeError, match="non-persistent") as caught:
        tape.gradient(loss, w)
    assert not any("tensorlens" in str(each.path) for each in caught.traceback[1:])
    with pytest.raises(TypeError, match="sources"):
        tf.GradientTape().gradient(loss)


def test_tapes_are_left_as_they_were(watched):
    watched()
    plain = vars(backprop.GradientTape)["gradient"]
    assert plain.__code__.co_name == "gradient" and not hasattr(plain, "__wrapped__")
    end, end_inner = watch(), watch()
    end()
    assert vars(backprop.GradientTape)["gradient"].__wrapped__ is plain
    end_inner()
    end_inner()
    assert vars(backprop.GradientTape)["gradient"] is plain


def test_a_wrapper_above_ours_stays(watched, monkeypatch):
    watched()
    # so that the method itself is put back in the end
    monkeypatch.setattr(backprop.GradientTape, "gradient", backprop.GradientTape.gradient)
    end = watch()
    ours = vars(backprop.GradientTape)["gradient"]

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    backprop.GradientTape.gradient = theirs
    end()
    assert vars(backprop.GradientTape)["gradient"] is theirs
    w = tf.Variable(tf.ones(3))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * w)
    g = tape.gradient(loss, w)
    assert g._id not in tape_gradients.NotedGradients().of
