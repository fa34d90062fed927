"""Grappler's six memory options on a small CNN for MNIST, in a v1 session and in TensorFlow 2.

The experiment is one of 2018 on a GPU, with TensorFlow 1.8: which batch still fits? Here it runs
on the CPU, on random data of MNIST's shape. Run it with ``python samples/grappler_options.py``:
about a hundred short processes, for each batch is tried in one of its own.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import tensorlens

v1 = tf.compat.v1
SHAPES = {
    "conv1/kernel": [3, 3, 1, 32],
    "conv1/bias": [32],
    "conv2/kernel": [3, 3, 32, 64],
    "conv2/bias": [64],
    "fc1/kernel": [14 * 14 * 64, 128],
    "fc1/bias": [128],
    "output/kernel": [128, 10],
    "output/bias": [10],
}


def network(images, labels, weights):
    """Two convolutions, a pool, two dense layers and dropout between them; returns the loss."""

    def conv(x, name):
        x = tf.nn.conv2d(x, weights[f"{name}/kernel"], strides=1, padding="SAME")
        return tf.nn.relu(tf.nn.bias_add(x, weights[f"{name}/bias"]))

    def dense(x, name):
        return tf.matmul(x, weights[f"{name}/kernel"]) + weights[f"{name}/bias"]

    x = conv(conv(tf.reshape(images, [-1, 28, 28, 1]), "conv1"), "conv2")
    pool = tf.nn.max_pool2d(x, ksize=2, strides=2, padding="VALID")
    flat = tf.nn.dropout(tf.reshape(pool, [-1, 14 * 14 * 64]), rate=0.25)
    fc1 = tf.nn.dropout(tf.nn.relu(dense(flat, "fc1")), rate=0.5)
    logits = dense(fc1, "output")
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    )


def data(batch):
    random = np.random.default_rng(0)
    return random.random((batch, 784), "float32"), random.integers(0, 10, batch, "int32")


def make_session(batch):
    """A graph of v1 and a session that trains it, as in 2018."""
    with tf.Graph().as_default() as graph:
        graph.seed = 0
        images = v1.placeholder(tf.float32, [None, 784])
        labels = v1.placeholder(tf.int32, [None])
        weights = {name: v1.get_variable(name, shape) for name, shape in SHAPES.items()}
        with tf.name_scope("train"):
            loss = network(images, labels, weights)
            train = v1.train.AdamOptimizer().minimize(loss)
        # the usual executor decides by the clock what runs next, and so the peak varies
        config = v1.ConfigProto(
            experimental=v1.ConfigProto.Experimental(executor_type="SINGLE_THREADED_EXECUTOR")
        )
        session = v1.Session(config=config)
        session.run(v1.global_variables_initializer())
    feed = dict(zip((images, labels), data(batch), strict=True))
    return lambda: session.run([loss, train], feed)[0]


def make_function(batch):
    """The same network in a ``tf.function``."""
    make = keras.initializers.GlorotUniform(seed=0)
    weights = {name: tf.Variable(make(shape), name=name) for name, shape in SHAPES.items()}
    optimizer = keras.optimizers.Adam()
    optimizer.build(list(weights.values()))
    # made here, for whether a NumPy array is copied depends on where its memory begins
    images = tf.random.stateless_uniform([batch, 784], [0, 0])
    labels = tf.random.stateless_uniform([batch], [0, 0], 0, 10, tf.int32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = network(images, labels, weights)
        found = list(weights.values())
        optimizer.apply(tape.gradient(loss, found), found)
        return loss

    return step


NAMES = (
    *("NO_MEM_OPT", "DEFAULT_MEM_OPT", "SWAPPING_HEURISTICS"),
    *("RECOMPUTATION_HEURISTICS", "SCHEDULING_HEURISTICS", "HEURISTICS"),
)
OPTIONS = {name: {"memory_optimization": name} for name in NAMES}

if __name__ == "__main__":
    for make_step in (make_session, make_function):
        found = tensorlens.compare(
            make_step,
            OPTIONS,
            batch=64,
            capacity="96 MiB",
            # what is looked between; where the answer is one of them, wider ones are to be tried
            lowest=64,
            highest=160,
            repeats=2,
            steps=2,
            framework="tensorflow",
        )
        print(found)
