"""What a person who writes Keras is told: no name of what Keras and TensorFlow are made of."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from tf_census_checks import Since

import tensorlens
from tensorlens.render import TextRenderer, View

INTERNAL = re.compile(
    r"__inference|_on_iterator|_on_data\b|__cf__|_input_dataset|_distributed_dataset|EpochIterator"
    r"|_variant_tensor_attr|_iterator_resource|tf_data_|no stack recorded|/_\d+|Dataset_[a-z]+_"
)
"""What these call things inside."""
ROWS, COLUMNS, BATCH = 64, 50, 16


@pytest.fixture(autouse=True)
def reporter():
    tf.zeros(1)
    return tensorlens.MemReporter()


def arrays():
    return np.ones((ROWS, COLUMNS), np.float32), np.ones((ROWS, 1), np.float32)


def dense():
    model = keras.Sequential([keras.Input((COLUMNS,)), keras.layers.Dense(1, name="out")])
    model.compile("adam", "mse")
    return model


class Looking(keras.callbacks.Callback):
    """Takes a snapshot in each part of Keras's loops."""

    def __init__(self, reporter):
        super().__init__()
        self.reporter = reporter
        self.seen = {}

    def look(self, name):
        self.seen.setdefault(name, self.reporter.snapshot())

    def on_train_batch_end(self, batch, logs=None):
        self.look("fit")

    def on_test_batch_end(self, batch, logs=None):
        self.look("evaluate")

    def on_predict_batch_end(self, batch, logs=None):
        self.look("predict")


def data(snapshot):
    found = [each for each in snapshot.tensors if each.name.startswith("data of tf.data[")]
    return sorted((each.name, each.role, each.nbytes) for each in found)


def test_data_given_to_keras_is_input(reporter):
    model, (x, y) = dense(), arrays()
    # what other tests of the process left
    unnamed = reporter.snapshot().ledger["cpu"].unnamed
    looking = Looking(reporter)
    held_out = x[:BATCH], y[:BATCH]
    model.fit(x, y, BATCH, verbose=0, callbacks=[looking], validation_data=held_out)
    model.predict(x, BATCH, verbose=0, callbacks=[looking])
    inputs, targets = "data of tf.data[0]", "data of tf.data[1]"
    of_fit = [(inputs, "input", ROWS * COLUMNS * 4), (targets, "input", ROWS * 4)]
    of_evaluate = [(inputs, "input", BATCH * COLUMNS * 4), (targets, "input", BATCH * 4)]
    assert data(looking.seen["fit"]) == of_fit
    assert data(looking.seen["evaluate"]) == sorted(of_fit + of_evaluate)
    assert (inputs, "input", ROWS * COLUMNS * 4) in data(looking.seen["predict"])
    for snapshot in looking.seen.values():
        text = TextRenderer(400, view=View(top=None)).render(snapshot)
        assert not INTERNAL.search(text), INTERNAL.search(text)
        assert text.count("handles of datasets and iterators") == 1
        # TensorFlow keeps with a graph the numbers that it has inferred shapes from
        assert snapshot.ledger["cpu"].unnamed < unnamed + 512


def test_source_arrays_of_a_dataset_are_input(reporter):
    rows = tf.data.Dataset.from_tensor_slices(arrays()).shuffle(8).batch(BATCH).prefetch(2)
    iterator = iter(rows)
    next(iterator)
    found = data(reporter.snapshot())
    assert ("data of tf.data[0]", "input", ROWS * COLUMNS * 4) in found
    assert ("data of tf.data[1]", "input", ROWS * 4) in found


def test_tensors_of_pipeline_threads_are_batches(reporter):
    before = reporter.snapshot()
    left = {(each.storage, each.name) for each in before.tensors}
    blocks = {block.address for block in before.ledger["cpu"].blocks}
    rows = tf.data.Dataset.range(40).shuffle(8).map(lambda n: tf.fill((5_000,), n), 2).batch(4)
    iterator = iter(rows.prefetch(2))
    next(iterator)
    # whatever its threads have made so far
    snapshot = reporter.snapshot()
    new = [each for each in snapshot.tensors if (each.storage, each.name) not in left]
    made = [each for each in new if each.nbytes >= 5_000 * 8 and "()" not in each.name]
    assert {(each.name, each.role) for each in made} <= {("batch of tf.data", "input")}
    large = [block for block in snapshot.ledger["cpu"].blocks if block.nbytes >= 5_000 * 8]
    assert {block.address for block in large} <= blocks


def test_constants_are_those_of_the_step_of_keras():
    table = np.arange(COLUMNS * 300, dtype=np.float32).reshape(COLUMNS, 300)

    class Table(keras.layers.Layer):
        def call(self, x):
            return tf.matmul(x, tf.constant(table, name="table"))

    model = keras.Sequential([keras.Input((COLUMNS,)), Table(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    since = Since()
    model.fit(*arrays(), BATCH, verbose=0)
    model.predict(arrays()[0], BATCH, verbose=0)
    found = [each.name for each in since.records() if each.nbytes == table.nbytes]
    steps = [name.partition("[")[0] for name in found if name.startswith("constants of")]
    assert steps == ["constants of Keras step"] * 2
    assert not [name for name in found if INTERNAL.search(name)]


class Pair(keras.Model):
    """Trains as the official guide's GAN does, with an optimizer for each of its networks."""

    def __init__(self):
        super().__init__()
        self.one, self.two = keras.layers.Dense(3, name="one"), keras.layers.Dense(1, name="two")

    def compile(self, d_optimizer, g_optimizer):
        super().compile(jit_compile=False)
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def call(self, x):
        return self.two(self.one(x))

    def train_step(self, data):
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(self(data[0]))
        for layer, optimizer in ((self.one, self.d_optimizer), (self.two, self.g_optimizer)):
            weights = layer.trainable_weights
            optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.parametrize("kind", ["arrays, one optimizer each", "dataset"])
def test_a_recording_of_fit_has_no_name_of_the_inside(kind):
    x, y = arrays()
    if kind == "dataset":
        model = dense()
        given = (tf.data.Dataset.from_tensor_slices((x, y)).shuffle(9).batch(BATCH).prefetch(3),)
    else:
        model, given = Pair(), (x, y, BATCH)
        model.compile(keras.optimizers.Adam(), keras.optimizers.Adam())
    model.fit(*given, verbose=0)
    with tensorlens.record() as recording:
        model.fit(*given, verbose=0)
    text = TextRenderer(view=View(top=None)).render(recording)
    assert not INTERNAL.search(text), INTERNAL.search(text)
    peak = recording.peak("cpu")
    # how many wait then is up to tf.data
    batches = [each for each in peak.tensors if each.name == "batch of tf.data"]
    assert {each.role for each in batches} <= {"input"}
