"""TensorFlow's failed allocations: what was asked for, by which line, and what was resident."""

import gc
import io

import keras
import numpy
import pytest
import tensorflow as tf

import tensorlens
from tensorlens.frameworks import TENSORFLOW, Request
from tensorlens.frameworks.tensorflow import failed_request
from tensorlens.recording import annotation, failure
from tensorlens.recording import annotation as oom

HUGE = 1 << 45
"""Floats that no machine has: 2**47 bytes."""


@pytest.fixture(autouse=True)
def fresh_budget(monkeypatch):
    monkeypatch.setattr(oom, "_explanations", 0)
    gc.collect()


def caught(function, *given):
    try:
        function(*given)
    except tf.errors.ResourceExhaustedError as error:
        return error
    raise AssertionError("nothing was raised")


class Wide(keras.layers.Layer):
    def call(self, x):
        count = tf.cast(1.0 + x[0, 0], tf.int64)
        return x + tf.fill((count,), 1.0)[0]  # asked in fit


def line_of(function, offset):
    code = function.__code__
    return f"{__file__}:{code.co_firstlineno + offset}"


# TensorFlow tries a refused request again for ten seconds; eager ones are in test_address_limit.py


def test_fit_names_the_layers_node_and_line_its_batch_and_what_was_resident():
    model = keras.Sequential([keras.Input((5,)), Wide(), keras.layers.Dense(7)])
    model.compile("sgd", "mse")
    x, y = numpy.zeros((8, 5), "float32"), numpy.ones((8, 7), "float32")
    # of the second batch the first row
    x[4, 0] = HUGE
    memory = tensorlens.keras.MemoryCallback(file=io.StringIO())
    fit = {"batch_size": 4, "shuffle": False, "verbose": 0, "callbacks": [memory]}
    error = caught(lambda: model.fit(x, y, **fit))
    notes = error.__notes__
    assert "tensorlens: out of memory" in notes[-2]
    assert notes[-1].startswith("tensorlens: it was batch 2 of epoch 1 of fit; before it the peak")
    found = annotation.explain(error)
    assert (found.request.nbytes, found.request.device) == (HUGE * 4, "cpu")
    assert found.request.source == "return x + tf.fill((count,), 1.0)[0]  # asked in fit"
    assert str(found.request.line).startswith(line_of(Wide.call, 2))
    assert found.request.op.endswith("/Fill")
    request = failed_request(error)
    assert (request.nbytes, request.device) == (HUGE * 4, "cpu")
    assert failed_request(ValueError("no")) is None
    kernel = model.layers[1].kernel
    (row,) = (each for each in found.snapshot.tensors if each.name == kernel.path)
    assert (row.role, row.nbytes) == ("parameter", 5 * 7 * 4)


def test_remedies_are_in_words_of_tensorflow():
    weights = [tf.Variable(tf.fill((1_000_000,), 2.5)), tf.Variable(tf.ones(3))]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.exp(weights[0])) + tf.reduce_sum(weights[1])
    gradients = tape.gradient(loss, weights)
    snapshot = tensorlens.MemReporter().snapshot()
    request = Request("cpu", 4_000_000, "no memory")
    texts = [each.text for each in failure.remedies(request, snapshot, words=TENSORFLOW)]
    del tape, loss, gradients
    assert any("del the list of them" in text for text in texts), texts
    assert not any("torch" in text for text in texts)
